"""How fast plans are worked out: pure Python on one core, nothing is trained.

    python -m benchmarks.planning    # 7 rounds; writes benchmarks/results/planning.json

Lists are made beforehand: the simulator's time is from lists to a finished simulation, graph included, and the
checker's that of one check.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks import planning_partition, results, rounds
from benchmarks.report import lines
from benchmarks.results import Result
from pipesvc.core.checker import check
from pipesvc.core.costs import LinkCost
from pipesvc.core.simulate import play
from pipesvc.core.stage_costs import StageCost
from pipesvc.core.step_lists import StepLists, step_lists

NUM_STAGES: Final = 16
NUM_MICRO_BATCHES: Final = 256
ACTIONS_AIM: Final = "value >= 300000"
# Twice as many actions; 2 is linear, the rest is caches and the machine.
LINEAR_AIM: Final = "ratio <= 2.6"

# One measurement repeats its work for at least so long.
_LEAST_S: Final = 0.3


def seconds_per_call(call: Callable[[], object]) -> float:
    num_calls, started_s = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - started_s) < _LEAST_S:
        call()
        num_calls += 1
    return taken_s / num_calls


def _stages() -> list[StageCost]:
    return [StageCost(worker=f"w{stage}", forward_s=1.0, backward_s=2.0) for stage in range(NUM_STAGES)]


def _lists(num_micro_batches: int, in_flight: int = 0) -> StepLists:
    homes = [stage.worker for stage in _stages()]
    return step_lists("1F1B", homes=homes, num_micro_batches=num_micro_batches, in_flight=in_flight)


def simulator_figures(num_rounds: int, command: str) -> list[Result]:
    """A hop of a forward's length, and as many in flight as hide it, make the workers choose far more often."""
    found = []
    for what, in_flight, latency_s in (("no hops", 0, 0.0), ("hops of 1 forward, 26 in flight", 26, 1.0)):
        lists, cost = _lists(NUM_MICRO_BATCHES, in_flight), LinkCost(latency_s=latency_s)
        num_actions = sum(map(len, lists.per_worker.values()))
        run = partial(play, lists, _stages(), num_micro_batches=NUM_MICRO_BATCHES, link=lambda *_, cost=cost: cost)
        speeds = [num_actions / seconds_per_call(run) for _ in range(num_rounds)]
        found.append(
            results.result(
                f"simulator, 1F1B, {NUM_STAGES} stages, {NUM_MICRO_BATCHES} micro-batches, {what}",
                rounds.spread(speeds),
                unit="actions/s",
                aim=ACTIONS_AIM,
                command=command,
                num_rounds=num_rounds,
            )
        )
    return found


def checker_figures(num_rounds: int, command: str) -> list[Result]:
    def run(num_micro_batches: int) -> Callable[[], object]:
        lists = _lists(num_micro_batches)
        return partial(
            check,
            lists.per_worker,
            num_stages=NUM_STAGES,
            num_micro_batches=num_micro_batches,
            bounds=lists.bounds,
        )

    single, double = run(NUM_MICRO_BATCHES), run(2 * NUM_MICRO_BATCHES)
    pairs = [(seconds_per_call(single), seconds_per_call(double)) for _ in range(num_rounds)]
    return [
        results.result(
            f"checker, 1F1B, {NUM_STAGES} stages, {2 * NUM_MICRO_BATCHES} micro-batches",
            rounds.spread([double_s for _, double_s in pairs]),
            unit="s",
            against=f"{NUM_MICRO_BATCHES} micro-batches",
            ratio=rounds.spread([double_s / single_s for single_s, double_s in pairs]),
            aim=LINEAR_AIM,
            command=command,
            num_rounds=num_rounds,
        )
    ]


# Every group of figures.
GROUPS: Final[tuple[Callable[[int, str], list[Result]], ...]] = (
    simulator_figures,
    checker_figures,
    planning_partition.figures,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of simulator, checker and partitioner.")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.planning --rounds {arguments.rounds}"
    found = [figure for group in GROUPS for figure in group(arguments.rounds, command)]
    print("\n".join(lines(found)))
    results.write(results.FOLDER / "planning.json", found)


if __name__ == "__main__":
    main()
