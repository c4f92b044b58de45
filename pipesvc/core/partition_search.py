"""The route with the smallest objective: caps are halved until no box of caps can hold a better one.

The objective is a sum plus two maxima, the bottleneck and the largest update. A table finds the smallest sum below
caps on both. So the plane of (bottleneck, update) is searched as boxes, the most promising first: no plan of a box is
better than the smallest sum below the box's upper corner plus the maxima of its lower corner. A box is halved, and
closed as soon as that bound reaches the best objective found. What is left at the end has a proven bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pipesvc.core.partition_problem import Kinds, Problem, score
from pipesvc.core.partition_states import States
from pipesvc.core.partition_table import TOLERANCE, Caps, Route, cheapest

# Tables filled at most for one search; far more than planning has been seen to need. It bounds the time, not the truth:
# a search that stops here says how far it has come.
MAX_FILLED: Final = 1000


class Box(NamedTuple):
    """Plans whose bottleneck and largest update lie in these ranges; `bound_s` is below each one's objective."""

    bound_s: float
    total_s: float  # no plan of the box has a smaller sum
    bottleneck_s: tuple[float, float]
    update_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Found:
    """A route, its objective, and what no other route that was allowed can be below."""

    route: Route
    objective_s: float
    lower_bound_s: float


@dataclass(slots=True, kw_only=True)
class Search:
    """One search; `excluded` is a number of devices of each kind that no route may use."""

    problem: Problem
    kinds: Kinds
    states: Sequence[States]
    excluded: tuple[int, ...] = ()
    best: Route | None = None
    best_s: float = float("inf")
    num_filled: int = 0
    boxes: list[Box] = field(default_factory=list)

    def run(self) -> Found | None:
        """The best route, or None where there is none."""
        self._first()
        if self.best is None:
            return None
        lower_bound_s = self.best_s
        while self.boxes:
            box = heapq.heappop(self.boxes)
            if box.bound_s >= self.best_s * (1 - TOLERANCE):
                break
            if self.num_filled >= MAX_FILLED:
                lower_bound_s = box.bound_s
                break
            for part in self._parts(box):
                self._push(part)
        return Found(self.best, self.best_s, min(lower_bound_s, self.best_s))

    def _first(self) -> None:
        """Any route, found below a bottleneck cap that grows; the boxes then reach as far as a better one may."""
        states = self.states[0]
        least_s = float(states.least_s[-1])
        low = max(float(np.diff(states.least_s).max()), least_s / float(states.room[0][0]))
        updates = np.diff(self.kinds.update_s, axis=1)
        low_update = float(np.where(np.diff(self.kinds.num_barred, axis=1) == 0, updates, np.inf).min(axis=0).max())
        cap, most = low * 1.02, self._largest_bottleneck_s()
        while self._fill(Caps(bottleneck_s=cap)) is None:
            if cap >= most:
                return
            cap = min(most, low + 2 * (cap - low) + most * 1e-3)
        later = self.problem.num_micro_batches - 1
        spare = self.best_s - least_s - low_update
        high = min(most, spare / later) if later else most
        high_update = self.best_s - least_s - later * low
        self._push(self._box(least_s, (low, high), (low_update, high_update)))

    def _largest_bottleneck_s(self) -> float:
        """No plan can exceed it."""
        sent = self.problem.crossing
        slowest = float(self.kinds.s_per_byte.max(initial=0.0))
        busiest = float(max(sent.forward_bytes.max(), sent.backward_bytes.max()))
        return max(float(self.kinds.stage_s[:, -1].max()), slowest * busiest)

    def _fill(self, caps: Caps) -> tuple[Route, float, float, float] | None:
        """The route with the smallest sum below the caps, with its sum, bottleneck and update."""
        best: tuple[Route, float, float, float] | None = None
        for states in self.states:
            self.num_filled += 1
            route = cheapest(states, caps, self.excluded)
            if route is None:
                continue
            total_s, bottleneck_s, update_s = parts = score(self.kinds, self.problem.crossing, route.edges, route.kinds)
            objective_s = parts.objective_s(self.problem.num_micro_batches)
            if objective_s < self.best_s * (1 - TOLERANCE):
                self.best, self.best_s = route, objective_s
            if best is None or total_s < best[1] * (1 - TOLERANCE):
                best = route, total_s, bottleneck_s, update_s
        return best

    def _box(self, total_s: float, bottleneck_s: tuple[float, float], update_s: tuple[float, float]) -> Box:
        bound_s = total_s + (self.problem.num_micro_batches - 1) * bottleneck_s[0] + update_s[0]
        return Box(bound_s, total_s, bottleneck_s, update_s)

    def _push(self, box: Box) -> None:
        (low, high), (low_update, high_update) = box.bottleneck_s, box.update_s
        if low <= high and low_update <= high_update and box.bound_s < self.best_s * (1 - TOLERANCE):
            heapq.heappush(self.boxes, box)

    def _parts(self, box: Box) -> Iterator[Box]:
        """What is left of a box after a table was filled below the half of its more valuable side."""
        (low, high), (low_update, high_update) = box.bottleneck_s, box.update_s
        later = self.problem.num_micro_batches - 1
        halves_update = high_update - low_update > later * (high - low)
        middle, middle_update = high, high_update
        if halves_update:
            middle_update = _half(low_update, high_update)
        else:
            middle = _half(low, high)
        limit_s = self.best_s - later * low - low_update
        found = self._fill(Caps(middle, middle_update, limit_s))
        if middle < high:
            yield self._box(box.total_s, (_above(middle), high), box.update_s)
        if middle_update < high_update:
            yield self._box(box.total_s, box.bottleneck_s, (_above(middle_update), high_update))
        if found is None:
            return
        # Plans below the caps that are no better in bottleneck and in update lose to the one that was found.
        _, total_s, bottleneck_s, update_s = found
        yield self._box(total_s, (low, min(middle, _below(bottleneck_s))), (low_update, middle_update))
        yield self._box(
            total_s, (max(low, min(bottleneck_s, middle)), middle), (low_update, min(middle_update, _below(update_s)))
        )


def _half(low: float, high: float) -> float:
    """The middle, or the upper end where the two are equal but for rounding."""
    return (low + high) / 2 if high - low > TOLERANCE * high else high


def _below(value: float) -> float:
    return value * (1 - 2 * TOLERANCE)


def _above(value: float) -> float:
    return value * (1 + TOLERANCE / 2)
