"""How far a sender runs ahead, in bytes: one parcel always passes, and what is taken makes room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipesvc.wire.ahead import AHEAD_BYTES, Ahead, has_room


def test_a_parcel_of_any_size_passes_when_nothing_is_before_it() -> None:
    ahead = Ahead()
    assert has_room(ahead.num_bytes)
    ahead.made(100 * AHEAD_BYTES)
    assert not has_room(ahead.num_bytes)
    ahead.taken(1)
    assert has_room(ahead.num_bytes)


def test_parcels_are_taken_in_their_order_and_counts_that_come_twice_count_once() -> None:
    ahead = Ahead()
    for num_bytes in (1, 20, 300):
        ahead.made(num_bytes)
    assert ahead.num_bytes == 321
    ahead.taken(1)
    ahead.taken(1)
    assert ahead.num_bytes == 320
    ahead.taken(3)
    ahead.taken(2)
    assert ahead.num_bytes == 0


@given(st.lists(st.integers(0, 3 * AHEAD_BYTES), max_size=30), st.data())
def test_no_more_than_the_bound_and_one_parcel_wait_and_all_pass(sizes: list[int], data: st.DataObject) -> None:
    """Whenever the receiver takes one, and in whatever order the two have their turns."""
    ahead, num_made, num_taken = Ahead(), 0, 0
    while num_taken < len(sizes):
        can_make = num_made < len(sizes) and has_room(ahead.num_bytes)
        assert can_make or num_taken < num_made, "stuck"
        if can_make and (num_taken == num_made or data.draw(st.booleans())):
            ahead.made(sizes[num_made])
            num_made += 1
        else:
            num_taken += 1
            ahead.taken(num_taken)
        assert ahead.num_bytes == sum(sizes[num_taken:num_made])
        assert ahead.num_bytes < AHEAD_BYTES + max(sizes)
