"""The checker refuses every kind of broken list and says where."""

from __future__ import annotations

import pytest

from pipesvc.core.actions import parse
from pipesvc.core.checker import check
from pipesvc.errors import ErrorCode, PipesvcError

GOOD = {"a": "0F0 0F1 0B0 0B1 0U", "b": "1F0 1B0 1F1 1B1 1U"}


def _check(lists: dict[str, str], *, decides: bool = False, bounds: dict[int, int] | None = None) -> dict[int, int]:
    return check(
        {worker: [parse(text) for text in texts.split()] for worker, texts in lists.items()},
        num_stages=2,
        num_micro_batches=2,
        bounds=bounds or {},
        decides=decides,
    )


def test_good_lists_pass_and_tell_their_peaks() -> None:
    assert _check(GOOD) == {0: 2, 1: 1}


def test_good_lists_with_clipping_pass() -> None:
    assert _check({"a": "0F0 0F1 0B0 0B1 0N 0D 0U", "b": "1F0 1B0 1F1 1B1 1N 1U"}, decides=True) == {0: 2, 1: 1}


@pytest.mark.parametrize(
    ("worker", "texts", "said"),
    [
        ("b", "1F0 1B0 1F1 1U", "the lists lack 1B1"),
        ("b", "1F0 1F0 1B0 1F1 1B1 1U", "1F0 is there twice"),
        ("b", "1F0 1B0 1F1 1B1 1N 1U", "1N has no place in this step"),
        ("b", "1F0 1B0 1F1 1B1 1B2 1U", "1B2 is of a micro-batch that is not among 2"),
        ("b", "1F0 1B0 1F1 1B1 1U 2U", "2U is of a stage that is not among 2 stages"),
        ("b", "1F0 1B0 1F1 1B1 1U 0F0", "0F0 is on b, but stage 0 is also on a"),
        ("b", "1F1 1B1 1F0 1B0 1U", "1F0 comes after 1F1"),
        ("b", "1F0 1B0 1F1 1U 1B1", "1B1 comes after 1U"),
        ("b", "1B0 1F0 1F1 1B1 1U", "b is blocked at 1B0, which waits for 1F0"),
        ("b", "1F0 1I0 1F1 1B1 1U", "the lists lack 1W0"),
        ("b", "1F0 1F1 1W0 1B1 1U", "the lists lack 1I0"),
        ("b", "1F0 1B0 1I0 1W0 1F1 1B1 1U", "1I0 is beside 1B0"),
        ("b", "1F0 1F1 1I1 1I0 1W0 1W1 1U", "1I0 comes after 1I1"),
        ("b", "1F0 1F1 1I0 1I1 1W1 1W0 1U", "1W0 comes after 1W1"),
        ("b", "1F0 1F1 1I0 1B1 1W0 1U", "1W0 comes after 1B1"),
        ("b", "1F0 1W0 1I0 1F1 1B1 1U", "b is blocked at 1W0, which waits for 1I0"),
        ("b", "1F0 1B0 1U 1F1 1B1", "1F1 comes after 1U"),
    ],
)
def test_broken_lists_are_refused(worker: str, texts: str, said: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        _check({**GOOD, worker: texts})
    assert caught.value.code is ErrorCode.INVALID_PLAN
    assert said in caught.value.details.message


def test_a_deadlock_names_each_blocked_action_and_what_it_waits_for() -> None:
    with pytest.raises(PipesvcError) as caught:
        _check({"a": "0F0 0B0 0F1 0B1 0U", "b": "1F0 1F1 1B0 1B1 1U"})
    assert "a is blocked at 0B0, which waits for 1B0" in str(caught.value)
    assert "b is blocked at 1F1, which waits for 0F1" in str(caught.value)


def test_a_deadlock_within_one_worker_is_seen() -> None:
    with pytest.raises(PipesvcError, match="blocked at 1F0, which waits for 0F0"):
        _check({"a": "1F0 0F0 0F1 1F1 1B0 1B1 0B0 0B1 0U 1U"})


def test_more_in_flight_than_the_bound_is_refused_with_the_place() -> None:
    with pytest.raises(PipesvcError, match="0F1 would be number 2 in flight on stage 0, which may hold 1") as caught:
        _check(GOOD, bounds={0: 1, 1: 1})
    assert str(caught.value.details.where) == "stage 0, micro-batch 1, worker a"


def test_a_split_backward_passes_and_lives_until_its_w() -> None:
    assert _check({"a": "0F0 0F1 0B0 0B1 0U", "b": "1F0 1I0 1F1 1I1 1W0 1W1 1U"}) == {0: 2, 1: 2}
    assert _check({"a": "0F0 0F1 0B0 0B1 0U", "b": "1F0 1I0 1W0 1F1 1B1 1U"}) == {0: 2, 1: 1}


def test_many_missing_actions_are_not_all_named() -> None:
    with pytest.raises(PipesvcError, match=r"lack 0F0, .* and 94 more"):
        check({"a": [parse("0U")]}, num_stages=1, num_micro_batches=51, bounds={})
