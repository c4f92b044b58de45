"""Schedules as data: every one of them, for every small number of workers, parts and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pipesvc.core.actions import Action, ActionKind
from pipesvc.core.checker import check
from pipesvc.core.choice import LOOK_AHEAD
from pipesvc.core.live import live_peaks, worker_peak
from pipesvc.core.schedules import (
    FILE,
    SCHEDULE_NAMES,
    check_counts,
    check_placement,
    homes,
    look_ahead,
    num_stages_by_default,
    schedule_name,
    worker_actions,
)
from pipesvc.errors import ErrorCode, PipesvcError

ONE_EACH = ("naive", "GPipe", "1F1B", "ZBH1")


def _texts(actions: Sequence[Action]) -> str:
    return " ".join(map(str, actions))


def _lists(
    schedule: str, num_stages: int, num_workers: int, m: int, *, in_flight: int = 0, decides: bool = False
) -> list[tuple[Action, ...]]:
    """The list of each worker, where the schedule wants its stages; they pass the checker."""
    places = homes(schedule, num_stages=num_stages, num_workers=num_workers)
    lists = [
        worker_actions(
            schedule,
            stages=[stage for stage, home in enumerate(places) if home == worker],
            num_stages=num_stages,
            num_micro_batches=m,
            in_flight=in_flight,
            decides=decides,
        )
        for worker in range(max(places) + 1)
    ]
    named = {f"worker {index}": actions for index, actions in enumerate(lists)}
    check(named, num_stages=num_stages, num_micro_batches=m, bounds={}, decides=decides)
    return lists


def _shapes(schedule: str) -> Iterator[tuple[int, int]]:
    """Stages and workers that the schedule is for."""
    if schedule in ONE_EACH:
        yield from ((p, p) for p in range(1, 6))
    elif schedule == "ZBV":
        yield from ((2 * p, p) for p in range(1, 6))
    else:
        yield from ((v * p, p) for p in range(2, 5) for v in range(2, 5))


def _published(schedule: str, num_stages: int, p: int, r: int, m: int) -> int:
    """Micro-batches alive on worker r of p at most, its v parts together (Narayanan et al. 2021, Qi et al. 2023)."""
    v = num_stages // p
    return {
        "naive": 1,
        "GPipe": m,
        "1F1B": min(m, p - r),
        "ZBH1": min(m, p),
        "ZBV": min(2 * m, 2 * p),
        "Interleaved1F1B": min(v * m, (v - 1) * p + 2 * (p - 1 - r) + 1),
    }[schedule]


@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_every_schedule_passes_the_checker_within_its_published_bound(schedule: str, decides: bool) -> None:
    for num_stages, p in _shapes(schedule):
        for m in range(1, 11):
            for r, actions in enumerate(_lists(schedule, num_stages, p, m, decides=decides)):
                published = _published(schedule, num_stages, p, r, m)
                is_exact = schedule != "Interleaved1F1B" and (schedule != "ZBV" or m >= 2 * p)
                peak = worker_peak(actions)
                assert peak == published if is_exact else peak <= published, (num_stages, p, r, m)


@pytest.mark.parametrize("num_stages", range(1, 6))
def test_1f1b_passes_the_checker_with_any_number_in_flight(num_stages: int) -> None:
    for m in range(1, 9):
        for in_flight in range(1, 12):
            lists = _lists("1F1B", num_stages, num_stages, m, in_flight=in_flight)
            peaks = [worker_peak(actions) for actions in lists]
            assert peaks[0] == min(m, in_flight)
            assert peaks == sorted(peaks, reverse=True)
            if num_stages > 1:
                assert peaks[-1] == 1


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_p06_one_micro_batch_on_four_stages(schedule: str) -> None:
    check_counts(schedule, num_micro_batches=1)
    num_workers = 4 if schedule in ONE_EACH else 2
    lists = _lists(schedule, 4, num_workers, 1)
    assert sum(map(len, lists)) == (4 * 4 if schedule.startswith("ZB") else 4 * 3)
    if schedule == "1F1B":
        assert _texts(lists[2]) == "2F0 2B0 2U"


def test_lists_of_two_stages() -> None:
    def lists(schedule: str) -> list[str]:
        return [_texts(actions) for actions in _lists(schedule, 2, 2, 3)]

    assert lists("naive") == ["0F0 0B0 0F1 0B1 0F2 0B2 0U", "1F0 1B0 1F1 1B1 1F2 1B2 1U"]
    assert lists("GPipe") == ["0F0 0F1 0F2 0B0 0B1 0B2 0U", "1F0 1F1 1F2 1B0 1B1 1B2 1U"]
    assert lists("1F1B") == ["0F0 0F1 0B0 0F2 0B1 0B2 0U", "1F0 1B0 1F1 1B1 1F2 1B2 1U"]
    assert lists("ZBH1") == ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2 0U", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2 1U"]


def test_lists_of_four_stages_on_two_workers() -> None:
    assert [_texts(actions) for actions in _lists("Interleaved1F1B", 4, 2, 2)] == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1 0U 2U",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 1U 3U",
    ]
    assert [_texts(actions) for actions in _lists("ZBV", 4, 2, 2, decides=True)] == [
        "0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1 0N 3N 0D 0U 3U",
        "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1 1N 2N 1U 2U",
    ]


def test_inference_is_forwards_alone_and_no_training_job_may_name_it() -> None:
    actions = worker_actions("inference", stages=[1], num_stages=2, num_micro_batches=3, decides=True)
    assert _texts(actions) == "1F0 1F1 1F2"
    both = worker_actions("inference", stages=[0, 1], num_stages=2, num_micro_batches=2)
    assert _texts(both) == "0F0 1F0 0F1 1F1"
    assert "inference" not in SCHEDULE_NAMES


@pytest.mark.parametrize(("num_workers", "num_parts"), [(2, 2), (2, 3), (3, 2), (4, 2), (4, 3), (5, 2)])
def test_interleaved_is_the_published_order_where_that_is_defined(num_workers: int, num_parts: int) -> None:
    """Counted as Narayanan et al. do: warm-up forwards, then a forward and a backward in turn, then backwards."""
    num_stages = num_workers * num_parts
    for m in (num_workers, 3 * num_workers):
        for r, actions in enumerate(_lists("Interleaved1F1B", num_stages, num_workers, m)):
            stages = range(r, num_stages, num_workers)
            groups = [range(start, start + num_workers) for start in range(0, m, num_workers)]
            forwards = [f"{stage}F{index}" for group in groups for stage in stages for index in group]
            backwards = [f"{stage}B{index}" for group in groups for stage in stages[::-1] for index in group]
            num_ahead = min(num_parts * m, (num_parts - 1) * num_workers + 2 * (num_workers - 1 - r))
            pairs = zip(forwards[num_ahead:], backwards, strict=False)
            wanted = [*forwards[:num_ahead], *(each for pair in pairs for each in pair)]
            wanted += backwards[num_parts * m - num_ahead :]
            assert list(map(str, actions[: len(wanted)])) == wanted


def test_clipping_adds_norms_everywhere_and_the_decision_on_stage_0() -> None:
    lists = _lists("GPipe", 2, 2, 2, decides=True)
    assert [_texts(actions[4:]) for actions in lists] == ["0N 0D 0U", "1N 1U"]


def test_a_worker_with_two_stages_goes_deep_before_wide() -> None:
    actions = worker_actions("1F1B", stages=[1, 0], num_stages=2, num_micro_batches=2)
    assert _texts(actions) == "0F0 1F0 0F1 1B0 0B0 1F1 1B1 1U 0B1 0U"


@pytest.mark.parametrize("schedule", ONE_EACH)
def test_a_worker_keeps_the_order_of_each_of_its_stages(schedule: str) -> None:
    merged = worker_actions(schedule, stages=[0, 2, 3], num_stages=4, num_micro_batches=5, decides=True)
    for stage in (0, 2, 3):
        own = worker_actions(schedule, stages=[stage], num_stages=4, num_micro_batches=5, decides=True)
        assert tuple(action for action in merged if action.stage == stage) == own


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_gradients_ascend_in_every_schedule(schedule: str) -> None:
    kinds = [ActionKind.INPUT_BACKWARD, ActionKind.WEIGHT_BACKWARD] if "ZB" in schedule else [ActionKind.BACKWARD]
    for actions in _lists(schedule, 4, 4 if schedule in ONE_EACH else 2, 7):
        for stage in live_peaks(actions):
            for kind in kinds:
                found = [a.micro_batch for a in actions if (a.stage, a.kind) == (stage, kind)]
                assert found == list(range(7))


@pytest.mark.parametrize("name", ["1f1b", "1F1B", "GPIPE", "gpipe", "Naive", "zbv", "interleaved1f1b"])
def test_case_of_names_does_not_matter(name: str) -> None:
    assert schedule_name(name) in SCHEDULE_NAMES


def test_an_unknown_schedule_is_refused_with_the_valid_names() -> None:
    with pytest.raises(PipesvcError, match=r"unknown schedule 'zigzag'.*naive, GPipe, 1F1B") as caught:
        worker_actions("zigzag", stages=[0], num_stages=1, num_micro_batches=1)
    assert caught.value.code is ErrorCode.INVALID_PLAN


@pytest.mark.parametrize(
    ("schedule", "num_micro_batches", "in_flight"),
    [("GPipe", 0, 0), ("GPipe", 4, 2), ("naive", 4, 1), ("1F1B", 4, -1), ("ZBV", 4, 3), ("Interleaved1F1B", 4, 1)],
)
def test_counts_that_do_not_fit_are_refused_with_the_fix(schedule: str, num_micro_batches: int, in_flight: int) -> None:
    with pytest.raises(PipesvcError, match=r"micro_batches|in_flight") as caught:
        check_counts(schedule, num_micro_batches=num_micro_batches, in_flight=in_flight)
    assert caught.value.details.advice


@pytest.mark.parametrize("stages", [[], [2], [-1], [0, 2]])
def test_stages_that_are_not_there_are_refused(stages: list[int]) -> None:
    with pytest.raises(PipesvcError, match="cannot hold stages"):
        worker_actions("1F1B", stages=stages, num_stages=2, num_micro_batches=2)


@pytest.mark.parametrize(
    ("schedule", "num_workers", "wanted"),
    [
        ("1F1B", 2, (0, 1, 2, 3)),
        ("Interleaved1F1B", 1, (0, 1, 0, 1)),  # one more is awaited
        ("Interleaved1F1B", 2, (0, 1, 0, 1)),
        ("Interleaved1F1B", 3, (0, 1, 0, 1)),
        ("Interleaved1F1B", 9, (0, 1, 0, 1)),
        ("ZBV", 1, (0, 1, 1, 0)),
        ("ZBV", 7, (0, 1, 1, 0)),
    ],
)
def test_which_stages_share_a_worker(schedule: str, num_workers: int, wanted: tuple[int, ...]) -> None:
    assert homes(schedule, num_stages=4, num_workers=num_workers) == wanted


def test_interleaved_takes_as_many_workers_as_divide_the_stages() -> None:
    def num_used(num_stages: int, num_workers: int) -> int:
        return max(homes("Interleaved1F1B", num_stages=num_stages, num_workers=num_workers)) + 1

    assert [num_used(12, num_workers) for num_workers in range(1, 9)] == [2, 2, 3, 4, 4, 6, 6, 6]
    assert num_used(9, 2) == 3


def test_stages_by_default() -> None:
    defaults = [num_stages_by_default(name, 3) for name in SCHEDULE_NAMES]
    assert dict(zip(SCHEDULE_NAMES, defaults, strict=True)) == {
        **dict.fromkeys(ONE_EACH, 3),
        "Interleaved1F1B": 6,
        "ZBV": 6,
    }
    assert num_stages_by_default("Interleaved1F1B", 1) == 4  # on two workers, of which one must come
    assert num_stages_by_default(FILE, 9, "0F0,0B0\n1F0,1B0\n") == 2


@pytest.mark.parametrize(
    ("schedule", "num_stages", "said"),
    [
        ("Interleaved1F1B", 3, "3 stages cannot be shared out"),
        ("Interleaved1F1B", 2, "2 stages"),
        ("ZBV", 5, "5 stages"),
    ],
)
def test_numbers_of_stages_that_cannot_be_shared_out_are_refused_with_the_fix(
    schedule: str, num_stages: int, said: str
) -> None:
    with pytest.raises(PipesvcError) as caught:
        homes(schedule, num_stages=num_stages, num_workers=2)
    assert said in caught.value.details.message
    assert "num_stages" in caught.value.details.advice


@pytest.mark.parametrize(
    ("schedule", "placement", "said"),
    [
        ("ZBV", [[0, 1], [2, 3]], "holds stages [0, 1] of 4, but with this schedule worker r of p holds stages r and"),
        ("ZBV", [[0], [1]], "holds stages [0] of 2"),
        ("Interleaved1F1B", [[0, 1], [2, 3]], "holds stages [0, 1] of 4, but with this schedule worker r of p holds"),
        ("Interleaved1F1B", [[0, 2], [1], [3]], "the workers hold [2, 1, 1] stages"),
        ("file", [[0], [1, 2]], "the model has 3 stages, and the schedule file is for 2"),
        ("file", [[0, 1]], "holds stages [0, 1] of 2, but with this schedule a worker holds the stages of one row"),
    ],
)
def test_other_placements_are_refused_with_rule_and_fix(schedule: str, placement: list[list[int]], said: str) -> None:
    text = "0F0,0B0\n1F0,1B0\n" if schedule == FILE else ""
    with pytest.raises(PipesvcError) as caught:
        check_placement(schedule, placement, text=text)
    assert said in caught.value.details.message
    assert caught.value.details.advice


def test_how_far_each_schedule_looks_beyond_its_order() -> None:
    ahead = {name: look_ahead(name, 2) for name in (*SCHEDULE_NAMES, FILE)}
    strict = {"naive": 2, "GPipe": 2, FILE: 1}
    assert ahead == {**dict.fromkeys(SCHEDULE_NAMES, LOOK_AHEAD), **strict}
