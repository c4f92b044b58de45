"""Steps over slow networks: beside what the plan predicted, and beside torch.distributed.pipelining over gloo.

    python -m benchmarks.slow_networks                    # 2 rounds; writes results/slow_networks.json
    python -m benchmarks.slow_networks --tiny --rounds 1  # does it work? writes nothing

Needs root and `ip`: hosts are network namespaces (`benchmarks.slow_hosts`).

First part: layers that sleep, so that the links alone can be late. A plan with `schedule="auto"` is made from measured
layers and links, and run; the bound is its simulated step. The network is at most the whole of what a step waits for,
and for one row it is the narrowest part of it.

Second part: the GPT of `benchmarks.pipeline`, and its embedding and head alone, whose compute is little beside what
they send, at 1 Gbit. torch's 1F1B over gloo has the same two namespaces, and its even cut.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks import results, rounds, torch_turn
from benchmarks.report import lines
from benchmarks.results import Result
from benchmarks.rounds import Turn
from benchmarks.slow_hosts import Conditions, SlowHosts, slow_hosts
from benchmarks.workloads import WORKLOADS

NUM_WARM_UP: Final = 2
NUM_PROCESSES: Final = 2
FORWARD_S, BACKWARD_S = 0.01, 0.02
ROWS, MICRO_BATCHES = 4, 8
BOUND: Final = "the plan's simulated step"
BOUND_AIM: Final = "ratio >= 0.9"
TORCH: Final = "torch 1F1B over gloo"
PLAIN: Final = "pipesvc"
NETWORK: Final = Conditions(rate="1gbit")
CODECS: Final[Mapping[str, Mapping[str, str]]] = {
    PLAIN: {},
    "pipesvc, bf16": {"activations": "bf16", "gradients": "bf16"},
    "pipesvc, int8 activations, bf16 gradients": {"activations": "int8", "gradients": "bf16"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A network, and how much goes over it for each micro-batch, each way."""

    conditions: Conditions
    boundary_bytes: int

    def __str__(self) -> str:
        return f"sleeping layers, {self.boundary_bytes >> 10} KiB each way, {self.conditions}"


ROWS_OF_SLEEPERS: Final = (
    # 44 ms on the link, where a stage computes for 30.
    Row(conditions=Conditions(rate="100mbit"), boundary_bytes=512 << 10),
    Row(conditions=Conditions(rate="1gbit"), boundary_bytes=2 << 20),
    Row(conditions=Conditions(delay_s=0.005), boundary_bytes=1 << 20),
    Row(conditions=Conditions(delay_s=0.05), boundary_bytes=1 << 20),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A workload at 1 Gbit, by its name; `aims` are of our contenders, by theirs."""

    workload: str
    aims: Mapping[str, str]

    def __str__(self) -> str:
        return WORKLOADS[self.workload].title


AIMS: Final = {PLAIN: "ratio >= 1.0"} | {name: "ratio >= 1.5" for name in CODECS if name != PLAIN}
COMPARISONS: Final = (
    Comparison(workload="gpt", aims=AIMS),
    Comparison(workload="wide", aims=AIMS),
)


def sleepers(row: Row, num_rounds: int, num_steps: int) -> tuple[list[float], list[float]]:
    """Seconds of a step, measured and simulated, in each round. Layers and links are measured once."""
    model = {
        "width": row.boundary_bytes // 4 // ROWS,
        "num_sleepers": NUM_PROCESSES,
        "forward_s": FORWARD_S,
        "backward_s": BACKWARD_S,
    }
    arguments = {"model": model, "micro_batch_rows": ROWS, "num_micro_batches": MICRO_BATCHES}
    measured, simulated = [], []
    with slow_hosts(row.conditions) as hosts:
        for _ in range(num_rounds):
            found = hosts.ask(job="sleeping", arguments=arguments, codec={}, num_steps=num_steps)
            measured.append(step_s(found["step_ends_s"]))
            simulated.append(found["predicted_s"])
            print(
                f"{row}: {measured[-1] * 1000:.1f} ms a step, {simulated[-1] * 1000:.1f} simulated, "
                f"{found['schedule']} with {found['in_flight']} in flight",
                flush=True,
            )
    return measured, simulated


def step_s(ends_s: Sequence[float]) -> float:
    """Over the timed steps as a whole."""
    timed = ends_s[NUM_WARM_UP - 1 :]
    return (timed[-1] - timed[0]) / (len(timed) - 1)


def compare(comparison: Comparison, hosts: SlowHosts, num_rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of each contender, in each round."""
    runs: dict[str, Callable[[], Turn]] = {
        name: partial(_service, comparison, hosts, codec) for name, codec in CODECS.items()
    }
    turns: dict[str, list[Turn]] = defaultdict(list)
    with torch_turn.TorchProcesses(
        comparison.workload, "1F1B", num_processes=NUM_PROCESSES, hosts=hosts.workers
    ) as processes:
        runs[TORCH] = processes.turn
        for round_index in range(num_rounds):
            for name in rounds.order(list(runs), round_index):
                turns[name].append(runs[name]())
                print(f"{comparison} at {NETWORK}: {turns[name][-1].step_s * 1000:7.1f} ms a step  {name}", flush=True)
    _check_losses(comparison, turns[PLAIN][-1].losses, turns[TORCH][-1].losses)
    return {name: [turn.step_s for turn in own] for name, own in turns.items()}


def _service(comparison: Comparison, hosts: SlowHosts, codec: Mapping[str, str]) -> Turn:
    what = WORKLOADS[comparison.workload]
    arguments = {"name": comparison.workload}
    found = hosts.ask(job="workload", arguments=arguments, codec=codec, num_steps=what.num_steps)
    print(f"  simulated {found['predicted_s'] * 1000:.1f} ms, {found['schedule']} with {found['in_flight']} in flight")
    return Turn(
        step_ends_ns=tuple(round(each * 1e9) for each in found["step_ends_s"]),
        losses=tuple(found["losses"]),
        num_warm_up_steps=what.num_warm_up_steps,
    )


def _check_losses(comparison: Comparison, ours: Sequence[float], theirs: Sequence[float]) -> None:
    """Without a codec both must do the same work."""
    for own, other in zip(ours, theirs, strict=True):
        if abs(own - other) > rounds.LOSS_TOLERANCE * abs(other):
            raise RuntimeError(f"{comparison}: a loss is {own} of pipesvc and {other} of torch")


def figures_of_sleepers(row: Row, measured: Sequence[float], simulated: Sequence[float], command: str) -> Result:
    return results.result(
        f"{row}: steps",
        rounds.spread([1 / seconds for seconds in measured]),
        unit="steps/s",
        against=BOUND,
        ratio=rounds.spread(rounds.ratios(simulated, measured)),
        aim=BOUND_AIM,
        command=command,
        num_rounds=len(measured),
    )


def figures_of_comparison(comparison: Comparison, seconds: Mapping[str, Sequence[float]], command: str) -> list[Result]:
    num_tokens = WORKLOADS[comparison.workload].num_tokens
    return [
        results.result(
            f"{comparison}, two hosts at {NETWORK}: {name}",
            rounds.spread([num_tokens / each for each in own]),
            unit="tokens/s",
            against="" if name == TORCH else TORCH,
            ratio=None if name == TORCH else rounds.spread(rounds.ratios(seconds[TORCH], own)),
            aim=comparison.aims.get(name, ""),
            command=command,
            num_rounds=len(own),
        )
        for name, own in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps over slow networks.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="one row and a small model; writes nothing")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.slow_networks --rounds {arguments.rounds}"
    found = []
    for row in ROWS_OF_SLEEPERS[:1] if arguments.tiny else ROWS_OF_SLEEPERS:
        measured, simulated = sleepers(row, arguments.rounds, NUM_WARM_UP + (2 if arguments.tiny else 12))
        found.append(figures_of_sleepers(row, measured, simulated, command))
    tiny = Comparison(workload="tiny", aims={})
    with slow_hosts(NETWORK) as hosts:
        for comparison in (tiny,) if arguments.tiny else COMPARISONS:
            seconds = compare(comparison, hosts, arguments.rounds)
            found += figures_of_comparison(comparison, seconds, command)
    print("\n".join(lines(found)))
    if not arguments.tiny:
        results.write(results.FOLDER / "slow_networks.json", found)


if __name__ == "__main__":
    main()
