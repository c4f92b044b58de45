"""What a step costs beside the model: stages without arithmetic, two workers, eight micro-batches.

    python -m benchmarks.overhead    # 5 rounds, about a minute; writes benchmarks/results/overhead.json

Each stage multiplies one number by its one parameter, so a step is what schedules, links, coordinator, feeder and
updates take; 1F1B without more in flight waits for every hop. torch.distributed.pipelining runs the same beside it: no
aim, but it says what such a step costs there. A turn is 50 steps that warm up and 100 that count; contenders take
turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Final

import pipesvc
from benchmarks import results, rounds
from benchmarks.report import lines
from benchmarks.results import Result
from benchmarks.rounds import Turn
from benchmarks.service_turn import make_job, run_turn
from benchmarks.torch_turn import TorchProcesses
from benchmarks.workloads import WORKLOADS

WORKLOAD: Final = "empty"
TORCH: Final = "torch 1F1B"
AHEAD: Final = "same host, 3 in flight"
AIMS: Final = {"same host": "value <= 5", AHEAD: "", "gRPC": "", TORCH: ""}


def measure(num_rounds: int) -> dict[str, list[Turn]]:
    what = WORKLOADS[WORKLOAD]
    with (
        pipesvc.LocalCluster(num_workers=2, num_threads=1) as client,
        TorchProcesses(WORKLOAD, "1F1B", num_processes=2) as torch,
    ):

        def ours(same_host: bool, in_flight: int | None = None) -> Callable[[], Turn]:
            strategy = pipesvc.Strategy(boundaries=(1,), same_host=same_host, in_flight=in_flight)
            return partial(run_turn, client, make_job(what, strategy), what.num_warm_up_steps)

        runs = {"same host": ours(True), AHEAD: ours(True, 3), "gRPC": ours(False), TORCH: torch.turn}
        turns: dict[str, list[Turn]] = {name: [] for name in runs}
        for round_index in range(num_rounds):
            for name in rounds.order(list(runs), round_index):
                turns[name].append(runs[name]())
                print(f"{turns[name][-1].step_s * 1e3:6.1f} ms a step  {name}", flush=True)
    return turns


def figures(turns: dict[str, list[Turn]], command: str) -> list[Result]:
    taken_ms = {name: [turn.step_s * 1e3 for turn in own] for name, own in turns.items()}
    return [
        results.result(
            f"a step of empty stages, 2 workers, {WORKLOADS[WORKLOAD].num_micro_batches} micro-batches: {name}",
            rounds.spread(own),
            unit="ms",
            against="" if name == TORCH else TORCH,
            ratio=None if name == TORCH else rounds.spread(rounds.ratios(own, taken_ms[TORCH])),
            aim=AIMS[name],
            command=command,
            num_rounds=len(own),
        )
        for name, own in taken_ms.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a step costs beside the model.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="only print")
    arguments = parser.parse_args()
    found = figures(measure(arguments.rounds), f"python -m benchmarks.overhead --rounds {arguments.rounds}")
    print("\n".join(lines(found)))
    if not arguments.no_write:
        results.write(results.FOLDER / "overhead.json", found)


if __name__ == "__main__":
    main()
