"""Micro-batches and their shares."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.split import check_batch_size, micro_batch_rows, shares
from pipesvc.errors import ErrorCode, PipesvcError


@given(st.integers(1, 500), st.integers(1, 64))
def test_rows_are_all_there_and_as_equal_as_can_be(num_rows: int, num_micro_batches: int) -> None:
    rows = micro_batch_rows(num_rows, num_micro_batches)
    assert sum(rows) == num_rows
    assert len(rows) == min(num_rows, num_micro_batches)
    assert list(rows) == sorted(rows, reverse=True)
    assert rows[0] - rows[-1] <= 1


@pytest.mark.parametrize(
    ("num_rows", "num_micro_batches", "rows"),
    [(8, 4, (2, 2, 2, 2)), (10, 4, (3, 3, 2, 2)), (5, 2, (3, 2)), (2, 4, (1, 1)), (7, 1, (7,))],
)
def test_rows_by_example(num_rows: int, num_micro_batches: int, rows: tuple[int, ...]) -> None:
    assert micro_batch_rows(num_rows, num_micro_batches) == rows


def test_n02_five_rows_in_two_micro_batches_weigh_by_rows() -> None:
    assert shares(micro_batch_rows(5, 2)) == (3 / 5, 2 / 5)


def test_n03_one_and_nine_tokens_weigh_by_tokens() -> None:
    assert shares((1.0, 9.0)) == (0.1, 0.9)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=64))
def test_shares_sum_to_one_to_rounding(weights: list[int]) -> None:
    assert math.isclose(math.fsum(shares(weights)), 1.0, rel_tol=1e-14)


def test_a_micro_batch_without_weight_counts_nothing() -> None:
    assert shares((0.0, 2.0)) == (0.0, 1.0)


@pytest.mark.parametrize("weights", [(), (0.0, 0.0), (1.0, -1.0), (math.nan, 1.0), (math.inf, 1.0), (1.7e308, 1.7e308)])
def test_weights_that_make_no_mean_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(PipesvcError, match="weights of") as caught:
        shares(weights)
    assert caught.value.code is ErrorCode.INVALID_JOB


@pytest.mark.parametrize(("num_rows", "num_micro_batches"), [(0, 1), (1, 0), (-1, 2)])
def test_nothing_cannot_be_cut(num_rows: int, num_micro_batches: int) -> None:
    with pytest.raises(PipesvcError, match="cannot be cut"):
        micro_batch_rows(num_rows, num_micro_batches)


def test_p09_a_batch_smaller_than_the_micro_batch_count_is_refused_with_the_fix() -> None:
    with pytest.raises(PipesvcError) as caught:
        check_batch_size(2, 4)
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert str(caught.value) == (
        "INVALID_JOB: a batch of 2 rows cannot be cut into 4 micro-batches. "
        "Use micro_batches=2 or fewer, or batch_size=4 or more."
    )
    check_batch_size(4, 4)


def test_p09_a_last_short_batch_uses_fewer_micro_batches() -> None:
    assert micro_batch_rows(2, 4) == (1, 1)
