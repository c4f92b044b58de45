"""Derived seeds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.seeds import derive

PATHS = st.tuples(st.integers(), st.lists(st.one_of(st.integers(), st.text(max_size=8)), max_size=4).map(tuple))

GOLDEN = (380_281_944_461_484_933, 5_830_125_497_606_403_796)


def test_the_derivation_does_not_change_between_versions() -> None:
    """These numbers decide every dropout mask of every stored run."""
    assert derive(0) == GOLDEN[0]
    assert derive(7, "forward", 1, 2, 3) == GOLDEN[1]


@given(PATHS)
def test_a_seed_has_63_bits(path: tuple[int, tuple[int | str, ...]]) -> None:
    assert 0 <= derive(path[0], *path[1]) < 2**63


@given(PATHS, PATHS)
def test_different_paths_give_different_seeds(
    one: tuple[int, tuple[int | str, ...]], other: tuple[int, tuple[int | str, ...]]
) -> None:
    assert (derive(one[0], *one[1]) == derive(other[0], *other[1])) == (one == other)


def test_paths_of_equal_concatenation_differ() -> None:
    found = {
        derive(1, "ab", "c"),
        derive(1, "a", "bc"),
        derive(1, 2, 3),
        derive(12, 3),
        derive(1, "2", 3),
        derive(1, 23),
    }
    assert len(found) == 6
