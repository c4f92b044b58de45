"""Schedules as data: every one of them, for every small number of stages and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipesvc.core.actions import Action, ActionKind
from pipesvc.core.checker import check
from pipesvc.core.choice import LOOK_AHEAD
from pipesvc.core.schedules import (
    SCHEDULE_NAMES,
    check_counts,
    in_flight_bound,
    look_ahead,
    schedule_name,
    stage_actions,
    worker_actions,
)
from pipesvc.errors import ErrorCode, PipesvcError


def _texts(actions: Sequence[Action]) -> str:
    return " ".join(map(str, actions))


def _peaks(schedule: str, num_stages: int, num_micro_batches: int, in_flight: int, clips: bool) -> dict[int, int]:
    """The checked live counts of one worker per stage; the bounds are checked on the way."""
    return check(
        {
            f"worker-{stage}": stage_actions(
                schedule,
                stage=stage,
                num_stages=num_stages,
                num_micro_batches=num_micro_batches,
                in_flight=in_flight,
                clips=clips,
            )
            for stage in range(num_stages)
        },
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        bounds={
            stage: in_flight_bound(schedule, stage, num_stages, num_micro_batches, in_flight)
            for stage in range(num_stages)
        },
        clips=clips,
    )


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("num_stages", range(1, 6))
@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_every_schedule_passes_the_checker(schedule: str, num_stages: int, clips: bool) -> None:
    for num_micro_batches in range(1, 9):
        peaks = _peaks(schedule, num_stages, num_micro_batches, 0, clips)
        published = {
            "naive": [1] * num_stages,
            "GPipe": [num_micro_batches] * num_stages,
            "1F1B": [min(num_micro_batches, num_stages - stage) for stage in range(num_stages)],
        }
        assert list(peaks.values()) == published[schedule]


@pytest.mark.parametrize("num_stages", range(1, 6))
def test_1f1b_passes_the_checker_with_any_number_in_flight(num_stages: int) -> None:
    for num_micro_batches in range(1, 9):
        for in_flight in range(1, 12):
            peaks = _peaks("1F1B", num_stages, num_micro_batches, in_flight, False)
            assert peaks[0] == min(num_micro_batches, in_flight)
            assert list(peaks.values()) == sorted(peaks.values(), reverse=True)
            if num_stages > 1:
                assert peaks[num_stages - 1] == 1


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_p06_one_micro_batch_on_four_stages(schedule: str) -> None:
    check_counts(schedule, num_micro_batches=1)
    assert _peaks(schedule, 4, 1, 0, False) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert _texts(stage_actions(schedule, stage=2, num_stages=4, num_micro_batches=1)) == "2F0 2B0 2U"


def test_lists_of_two_stages() -> None:
    def lists(schedule: str) -> list[str]:
        return [_texts(stage_actions(schedule, stage=stage, num_stages=2, num_micro_batches=3)) for stage in range(2)]

    assert lists("naive") == ["0F0 0B0 0F1 0B1 0F2 0B2 0U", "1F0 1B0 1F1 1B1 1F2 1B2 1U"]
    assert lists("GPipe") == ["0F0 0F1 0F2 0B0 0B1 0B2 0U", "1F0 1F1 1F2 1B0 1B1 1B2 1U"]
    assert lists("1F1B") == ["0F0 0F1 0B0 0F2 0B1 0B2 0U", "1F0 1B0 1F1 1B1 1F2 1B2 1U"]


def test_clipping_adds_norms_everywhere_and_the_decision_on_stage_0() -> None:
    def tail(stage: int) -> str:
        actions = stage_actions("GPipe", stage=stage, num_stages=2, num_micro_batches=2, clips=True)
        return _texts(actions[4:])

    assert tail(0) == "0N 0D 0U"
    assert tail(1) == "1N 1U"


def test_a_worker_with_two_stages_goes_deep_before_wide() -> None:
    actions = worker_actions("1F1B", stages=[1, 0], num_stages=2, num_micro_batches=2)
    assert _texts(actions) == "0F0 1F0 0F1 1B0 0B0 1F1 1B1 1U 0B1 0U"


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_a_worker_keeps_the_order_of_each_of_its_stages(schedule: str) -> None:
    merged = worker_actions(schedule, stages=[0, 2, 3], num_stages=4, num_micro_batches=5, clips=True)
    for stage in (0, 2, 3):
        own = stage_actions(schedule, stage=stage, num_stages=4, num_micro_batches=5, clips=True)
        assert tuple(action for action in merged if action.stage == stage) == own


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_backwards_ascend_in_every_schedule(schedule: str) -> None:
    actions = stage_actions(schedule, stage=1, num_stages=3, num_micro_batches=7)
    assert [a.micro_batch for a in actions if a.kind is ActionKind.BACKWARD] == list(range(7))


@pytest.mark.parametrize("name", ["1f1b", "1F1B", "GPIPE", "gpipe", "Naive"])
def test_case_of_names_does_not_matter(name: str) -> None:
    assert schedule_name(name) in SCHEDULE_NAMES


def test_an_unknown_schedule_is_refused_with_the_valid_names() -> None:
    with pytest.raises(PipesvcError, match=r"unknown schedule 'zigzag'.*naive, GPipe, 1F1B") as caught:
        in_flight_bound("zigzag", 0, 1, 1)
    assert caught.value.code is ErrorCode.INVALID_PLAN


@pytest.mark.parametrize(
    ("schedule", "num_micro_batches", "in_flight"), [("GPipe", 0, 0), ("GPipe", 4, 2), ("naive", 4, 1), ("1F1B", 4, -1)]
)
def test_counts_that_do_not_fit_are_refused_with_the_fix(schedule: str, num_micro_batches: int, in_flight: int) -> None:
    with pytest.raises(PipesvcError, match=r"micro_batches|in_flight") as caught:
        check_counts(schedule, num_micro_batches=num_micro_batches, in_flight=in_flight)
    assert caught.value.details.advice


@pytest.mark.parametrize("stages", [[], [2], [-1], [0, 2]])
def test_stages_that_are_not_there_are_refused(stages: list[int]) -> None:
    with pytest.raises(PipesvcError, match="cannot hold stages"):
        worker_actions("1F1B", stages=stages, num_stages=2, num_micro_batches=2)


def test_only_1f1b_looks_beyond_the_order_of_a_stage() -> None:
    assert [look_ahead(name, 1) for name in SCHEDULE_NAMES] == [1, 1, LOOK_AHEAD]
    assert look_ahead("gpipe", 3) == 3
