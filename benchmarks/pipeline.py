"""Tokens per second of pipesvc beside torch.distributed.pipelining, on two processes of one thread each.

    python -m benchmarks.pipeline                          # 7 minutes; writes benchmarks/results/pipeline.json
    python -m benchmarks.pipeline --only thin-8            # one workload; writes nothing
    python -m benchmarks.pipeline --only tiny --rounds 1   # does it work?

All contenders train the same layers with the same weights on the same batch, in the same micro-batches, with the same
optimizer. Ours has the plan and the schedule that `auto` finds from a profile, over the links of one host and forced
onto gRPC. torch has its equal cut into stages and, for honesty, also the cut that our plan has found. Of torch's
other schedules each runs once; the best of them runs in every round. (LoopedBFS is not among them: in a trial it was
9 % behind 1F1B. Nor is return_outputs=False: its difference was within the spread of two equal turns.)

A turn is some steps of one contender: first those that warm up, then those that count. Contenders take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pipesvc
from benchmarks import results, rounds
from benchmarks.report import lines
from benchmarks.results import Result
from benchmarks.rounds import Turn
from benchmarks.service_turn import make_job, run_turn
from benchmarks.torch_turn import TWO_STAGES_EACH, TorchProcesses
from benchmarks.workloads import WORKLOADS

NUM_PROCESSES: Final = 2
SINGLE: Final = "one process, one thread"
TORCH: Final = "torch 1F1B"
TORCH_BEST: Final = "torch's best"
TORCH_OUR_CUT: Final = "torch 1F1B, cut as our plan"
SAME_HOST: Final = "pipesvc auto, same host"
GRPC: Final = "pipesvc auto, gRPC"
OURS: Final = (SAME_HOST, GRPC)

Pair = tuple[str, str]
"""A contender and the one that it is compared with."""

# By workload: rounds, and what is compared, with its aim.
ROUNDS: Final[Mapping[str, int]] = {"gpt": 3, "thin-8": 3, "thin-16": 3, "asleep": 3, "tiny": 1}
_THIN: Final[Mapping[Pair, str]] = {(SAME_HOST, TORCH): "ratio >= 1.05", (GRPC, TORCH): "ratio >= 1.0"}
_GPT: Final[Mapping[Pair, str]] = {
    (SAME_HOST, TORCH): "ratio >= 1.1",
    (SAME_HOST, TORCH_BEST): "ratio >= 1.05",
    (GRPC, TORCH): "ratio >= 1.0",
    (SAME_HOST, TORCH_OUR_CUT): "",
    (GRPC, TORCH_OUR_CUT): "",
    (TORCH_BEST, TORCH): "",
    (TORCH_OUR_CUT, TORCH): "",
}
AIMS: Final[Mapping[str, Mapping[Pair, str]]] = {
    "gpt": _GPT,
    "tiny": _GPT,
    "thin-8": _THIN,
    "thin-16": _THIN,
    "asleep": {(SAME_HOST, TORCH): "ratio >= 1.2", (GRPC, TORCH): ""},
}

RunTurn = Callable[[], Turn]


@dataclass(kw_only=True, slots=True)
class Measured:
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """What a contender turned out to be: a plan, a schedule."""

    def take(self, name: str, run: RunTurn, num_tokens: int) -> Turn:
        turn = run()
        self.turns.setdefault(name, []).append(turn)
        print(f"{turn.tokens_per_s(num_tokens):9.0f} tokens/s, {turn.step_s * 1e3:6.0f} ms a step  {name}", flush=True)
        return turn


def measure(workload: str, client: pipesvc.Client, num_rounds: int) -> Measured:
    what, measured = WORKLOADS[workload], Measured()
    names = {name for pair in AIMS[workload] for name in pair}
    with ExitStack() as stack:
        open_torch = partial(_open_torch, stack, workload)
        runs: dict[str, RunTurn] = {}
        if TORCH_BEST in names:
            best = _best_of_torch(workload, measured)
            measured.notes[TORCH_BEST] = best
            runs[TORCH_BEST] = open_torch(best)
        for name in OURS:
            strategy = pipesvc.Strategy(boundaries="auto", schedule="auto", same_host=name == SAME_HOST)
            planned = client.plan(make_job(what, strategy))
            measured.notes[name] = _plan_text(planned)
            runs[name] = partial(run_turn, client, make_job(what, planned.strategy), what.num_warm_up_steps)
            print(f"{name}: {measured.notes[name]}", flush=True)
            if name == SAME_HOST and TORCH_OUR_CUT in names:
                runs[TORCH_OUR_CUT] = open_torch("1F1B", _cut_of(planned))
        runs[TORCH] = open_torch("1F1B")
        for round_index in range(num_rounds):
            for name in rounds.order(list(runs), round_index):
                measured.take(name, runs[name], what.num_tokens)
    return measured


# What torch's best is chosen from, with 1F1B, which runs in every round.
_CANDIDATES: Final = ("GPipe", *TWO_STAGES_EACH)


def _open_torch(stack: ExitStack, workload: str, schedule: str, boundaries: tuple[int, ...] = ()) -> RunTurn:
    processes = TorchProcesses(workload, schedule, num_processes=NUM_PROCESSES, boundaries=boundaries)
    return stack.enter_context(processes).turn


def _best_of_torch(workload: str, measured: Measured) -> str:
    """Each once; the whole model in one process besides, whose losses are the truth."""
    num_tokens = WORKLOADS[workload].num_tokens
    with TorchProcesses(workload, "", num_processes=1) as alone:
        measured.take(SINGLE, alone.turn, num_tokens)
    speeds = {}
    for name in _CANDIDATES:
        with ExitStack() as stack:
            turn = measured.take(f"torch {name}, once", _open_torch(stack, workload, name), num_tokens)
        speeds[name] = turn.tokens_per_s(num_tokens)
    return max(speeds, key=lambda name: speeds[name])


def _cut_of(planned: pipesvc.client.planning.Planned) -> tuple[int, ...]:
    """Of two stages: where a plan has more, each worker's first half of the layers, as near as stages allow."""
    firsts, counts = [0], [len(stage.layer_names) for stage in planned.plan.stages]
    for count in counts:
        firsts.append(firsts[-1] + count)
    return (firsts[len(counts) // 2],)


def _plan_text(planned: pipesvc.client.planning.Planned) -> str:
    counts = "+".join(str(len(stage.layer_names)) for stage in planned.plan.stages)
    in_flight = f", {planned.plan.in_flight} in flight" if planned.plan.in_flight else ""
    return f"{planned.plan.schedule}, {counts} layers{in_flight}"


def figures(workload: str, measured: Measured, command: str) -> list[Result]:
    what, turns = WORKLOADS[workload], measured.turns
    speeds = {name: [turn.tokens_per_s(what.num_tokens) for turn in own] for name, own in turns.items()}

    def called(name: str) -> str:
        note = measured.notes.get(name, "")
        return f"{name} ({note})" if note else name

    found = [
        results.result(
            f"{what.title}, {NUM_PROCESSES} workers: {called(name)}",
            rounds.spread(speeds[name]),
            unit="tokens/s",
            against=called(other),
            ratio=rounds.spread(rounds.ratios(speeds[name], speeds[other])),
            aim=aim,
            command=command,
            num_rounds=len(speeds[name]),
        )
        for (name, other), aim in AIMS[workload].items()
    ]
    compared = {name for pair in AIMS[workload] for name in pair} - {TORCH}
    found += [
        results.result(
            f"{what.title}: {name}",
            rounds.spread(own),
            unit="tokens/s",
            command=command,
            num_rounds=len(own),
        )
        for name, own in speeds.items()
        if name not in compared
    ]
    return [*found, _loss_figure(what.title, turns, command)]


def _loss_figure(title: str, turns: Mapping[str, Sequence[Turn]], command: str) -> Result:
    truth = SINGLE if SINGLE in turns else TORCH
    difference, whose = rounds.largest_loss_difference(turns, truth)
    print(f"largest relative difference of a loss: {difference:.3g}" + (f", of {whose}" if difference else ""))
    return results.result(
        f"{title}: largest relative difference of a loss in the first {rounds.NUM_COMPARED_STEPS} steps, any contender",
        rounds.spread([difference]),
        unit="of the loss",
        against=truth,
        aim=f"value <= {rounds.LOSS_TOLERANCE:g}",
        command=command,
        num_rounds=max(map(len, turns.values())),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per second beside torch.distributed.pipelining.")
    parser.add_argument("--rounds", type=int, help="of each workload, instead of its own number")
    parser.add_argument("--only", choices=sorted(AIMS), help="one workload; writes nothing")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else [name for name in AIMS if name != "tiny"]
    command = "python -m benchmarks.pipeline" + (f" --rounds {arguments.rounds}" if arguments.rounds else "")
    found = []
    with pipesvc.LocalCluster(num_workers=NUM_PROCESSES, num_threads=1) as client:
        for name in names:
            found += figures(name, measure(name, client, arguments.rounds or ROUNDS[name]), command)
    print("\n".join(lines(found)))
    if not arguments.only:
        results.write(results.FOLDER / "pipeline.json", found)


if __name__ == "__main__":
    main()
