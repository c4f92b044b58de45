"""Whatever stages a worker holds, the lists of the workers never lock each other up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pipesvc.core.checker import check
from pipesvc.core.simulate import simulate
from pipesvc.core.step_lists import step_lists
from tests.simulation.workloads import ANYWHERE, equal_stages, hops


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


def _homes(placement: Sequence[Sequence[int]]) -> list[str]:
    return [stage.worker for stage in equal_stages(placement)]


def test_all_placements_are_listed() -> None:
    assert [len(list(_placements(num_stages))) for num_stages in range(1, 6)] == [1, 2, 5, 15, 52]
    assert [[0, 2], [1]] in _placements(3)


@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("num_stages", range(1, 6))
@pytest.mark.parametrize("schedule", ANYWHERE)
def test_no_placement_deadlocks(schedule: str, num_stages: int, decides: bool) -> None:
    for num_micro_batches in (1, 2, 3, 5, 8):
        for placement in _placements(num_stages):
            lists = step_lists(schedule, homes=_homes(placement), num_micro_batches=num_micro_batches, decides=decides)
            peaks = check(
                lists.per_worker,
                num_stages=num_stages,
                num_micro_batches=num_micro_batches,
                bounds=lists.bounds,
                decides=decides,
            )
            assert peaks == lists.bounds


@pytest.mark.parametrize("in_flight", [1, 2, 5, 9])
def test_no_placement_deadlocks_with_any_number_in_flight(in_flight: int) -> None:
    for placement in _placements(4):
        lists = step_lists("1F1B", homes=_homes(placement), num_micro_batches=6, in_flight=in_flight)
        assert check(lists.per_worker, num_stages=4, num_micro_batches=6, bounds=lists.bounds) == lists.bounds


@pytest.mark.parametrize("schedule", ANYWHERE)
def test_one_worker_with_all_stages_is_never_idle(schedule: str) -> None:
    for num_stages in range(1, 5):
        stages = equal_stages([range(num_stages)])
        step = simulate(schedule, stages, num_micro_batches=4, link=hops(5))
        assert step.bubble == 0
        assert step.step_s == 3 * num_stages * 4


def test_two_stages_on_each_of_two_workers_overlap() -> None:
    """Four stages on two workers: little is lost against a cut into two, and much won over one worker."""
    for schedule in ("GPipe", "1F1B"):
        step = simulate(schedule, equal_stages([[0, 1], [2, 3]]), num_micro_batches=8)
        two_stages_s, one_worker_s = (8 + 2 - 1) * 6, 8 * 4 * 3
        assert two_stages_s <= step.step_s <= 1.1 * two_stages_s < one_worker_s, step.step_s
