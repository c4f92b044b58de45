"""Which combinations of the zoo run: few, in which every pair of values occurs that can.

Faults of such a product come from one value or from two together (Kuhn, Wallace and Gallo, "Software fault
interactions and implications for software testing", 2004). The choice is greedy, as in AETG, and the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

Row = tuple[Any, ...]


def pairs_of(row: Row) -> set[tuple[int, int, Any, Any]]:
    return {(i, j, row[i], row[j]) for i, j in combinations(range(len(row)), 2)}


def pairwise(values: Sequence[Iterable[Any]], is_possible: Callable[[Row], bool]) -> list[Row]:
    """`values[0]` should be the longest list: rows are sorted by it, and each of its values is seen to in turn, each
    beginning with another combination of the rest, so that together they have most of those."""
    rows: list[Row] = []
    covered: set[tuple[int, int, Any, Any]] = set()
    for index, first in enumerate(values[0]):
        left = [row for row in product([first], *values[1:]) if is_possible(row)]
        left = left[index * 7 % len(left) :] + left[: index * 7 % len(left)]
        own = {pair for row in left for pair in pairs_of(row) if pair[0] == 0}
        while not own <= covered:
            best = max(left, key=lambda row: (len((pairs_of(row) & own) - covered), len(pairs_of(row) - covered)))
            covered |= pairs_of(best)
            rows.append(best)
    return rows
