"""From times of turns to figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks import rounds
from benchmarks.rounds import Spread, Turn

NUM_WARM_UP_STEPS, NUM_STEPS = 2, 8
NUM_TIMED_STEPS = NUM_STEPS - NUM_WARM_UP_STEPS


def make_turn(*, step_ns: int = 1_000_000_000, slow_warm_up_ns: int = 0, losses: tuple[float, ...] = ()) -> Turn:
    ends = [slow_warm_up_ns + step_ns * (index + 1) for index in range(NUM_STEPS)]
    own = losses + tuple(1.0 for _ in range(NUM_STEPS - len(losses)))
    return Turn(step_ends_ns=tuple(ends), losses=own, num_warm_up_steps=NUM_WARM_UP_STEPS)


def test_speed_counts_the_timed_steps_alone() -> None:
    assert make_turn().tokens_per_s(4096) == 4096
    assert make_turn(slow_warm_up_ns=10**12).tokens_per_s(4096) == 4096
    ends = list(make_turn().step_ends_ns)
    ends[NUM_WARM_UP_STEPS - 1] += 10**9
    late = replace(make_turn(), step_ends_ns=tuple(ends))
    assert late.tokens_per_s(4096) == pytest.approx(4096 * NUM_TIMED_STEPS / (NUM_TIMED_STEPS - 1))


def test_a_turn_has_all_its_steps_and_counts_some() -> None:
    with pytest.raises(ValueError, match="7 times and 8 losses"):
        Turn(step_ends_ns=(1,) * 7, losses=(1.0,) * 8, num_warm_up_steps=2)
    for num_warm_up_steps in (0, 8):
        with pytest.raises(ValueError, match=f"{num_warm_up_steps} of 8 steps warm up"):
            replace(make_turn(), num_warm_up_steps=num_warm_up_steps)


def test_the_order_is_reversed_every_other_round() -> None:
    assert [rounds.order("abc", index) for index in range(3)] == [list("abc"), list("cba"), list("abc")]


def test_ratios_are_of_the_same_round() -> None:
    """The machine halves its speed in the second round; the ratio does not see it."""
    assert rounds.ratios([200.0, 100.0, 210.0], [100.0, 50.0, 100.0]) == [2.0, 2.0, 2.1]
    with pytest.raises(ValueError, match="argument 2"):
        rounds.ratios([1.0, 2.0], [1.0])


def test_spread() -> None:
    assert rounds.spread([3.0, 1.0, 10.0]) == Spread(median=3.0, lowest=1.0, highest=10.0)


def test_the_largest_difference_of_losses_and_whose_it_is() -> None:
    turns = {
        "truth": [make_turn(losses=(8.0, 4.0))],
        "equal": [make_turn(losses=(8.0, 4.0))],
        "off": [make_turn(losses=(8.0, 4.0)), make_turn(losses=(8.0, 4.5))],
    }
    assert rounds.largest_loss_difference(turns, "truth") == (0.125, "off")


def test_losses_after_the_compared_steps_do_not_count() -> None:
    losses = (1.0,) * rounds.NUM_COMPARED_STEPS
    turns = {"truth": [make_turn()], "later": [make_turn(losses=(*losses, 2.0))]}
    assert rounds.largest_loss_difference(turns, "truth")[0] == 0.0


def test_a_loss_that_is_no_number_agrees_with_nothing() -> None:
    turns = {"truth": [make_turn()], "broken": [make_turn(losses=(1.0, math.nan))]}
    assert rounds.largest_loss_difference(turns, "truth") == (math.inf, "broken")
