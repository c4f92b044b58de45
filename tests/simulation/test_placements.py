"""Whatever stages a worker holds, the lists of the workers never lock each other up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipesvc.core.checker import check
from pipesvc.core.schedules import SCHEDULE_NAMES, in_flight_bound, worker_actions
from pipesvc.core.simulate import Times, simulate


def _placements(num_stages: int) -> Iterator[list[list[int]]]:
    """Every way to give the stages to workers, contiguous or not."""

    def extend(stage: int, groups: list[list[int]]) -> Iterator[list[list[int]]]:
        if stage == num_stages:
            yield [list(group) for group in groups]
            return
        for group in groups:
            group.append(stage)
            yield from extend(stage + 1, groups)
            group.pop()
        groups.append([stage])
        yield from extend(stage + 1, groups)
        groups.pop()

    yield from extend(0, [])


def test_all_placements_are_listed() -> None:
    assert [len(list(_placements(num_stages))) for num_stages in range(1, 6)] == [1, 2, 5, 15, 52]
    assert [[0, 2], [1]] in _placements(3)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("num_stages", range(1, 6))
@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_no_placement_deadlocks(schedule: str, num_stages: int, clips: bool) -> None:
    for num_micro_batches in (1, 2, 3, 5, 8):
        bounds = {stage: in_flight_bound(schedule, stage, num_stages, num_micro_batches) for stage in range(num_stages)}
        for placement in _placements(num_stages):
            lists = {
                str(stages): worker_actions(
                    schedule, stages=stages, num_stages=num_stages, num_micro_batches=num_micro_batches, clips=clips
                )
                for stages in placement
            }
            peaks = check(lists, num_stages=num_stages, num_micro_batches=num_micro_batches, bounds=bounds, clips=clips)
            assert peaks == bounds


@pytest.mark.parametrize("in_flight", [1, 2, 5, 9])
def test_no_placement_deadlocks_with_any_number_in_flight(in_flight: int) -> None:
    for placement in _placements(4):
        bounds = {stage: in_flight_bound("1F1B", stage, 4, 6, in_flight) for stage in range(4)}
        lists = {
            str(stages): worker_actions("1F1B", stages=stages, num_stages=4, num_micro_batches=6, in_flight=in_flight)
            for stages in placement
        }
        assert check(lists, num_stages=4, num_micro_batches=6, bounds=bounds) == bounds


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_one_worker_with_all_stages_is_never_idle(schedule: str) -> None:
    for num_stages in range(1, 5):
        step = simulate(
            schedule,
            stages_per_worker=[range(num_stages)],
            num_micro_batches=4,
            times=Times(forward_s=[1] * num_stages, backward_s=[2] * num_stages, hop_s=5),
        )
        assert step.bubble == 0
        assert step.step_s == 3 * num_stages * 4


def test_two_stages_on_each_of_two_workers_overlap() -> None:
    """Four stages on two workers: little is lost against a cut into two, and much won over one worker."""
    for schedule in ("GPipe", "1F1B"):
        step = simulate(
            schedule,
            stages_per_worker=[[0, 1], [2, 3]],
            num_micro_batches=8,
            times=Times(forward_s=[1] * 4, backward_s=[2] * 4),
        )
        two_stages_s, one_worker_s = (8 + 2 - 1) * 6, 8 * 4 * 3
        assert two_stages_s <= step.step_s <= 1.1 * two_stages_s < one_worker_s, step.step_s
