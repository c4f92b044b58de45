"""The route with the smallest objective: caps are halved until no box of caps can hold a better one.

The objective is a sum plus two maxima, the bottleneck and the largest update. A table finds the smallest sum below
caps on both. So the plane of (bottleneck, update) is searched as boxes, the most promising first: no plan of a box is
better than the smallest sum below the box's upper corner plus the maxima of its lower corner. A box is halved, and
closed as soon as that bound reaches the best objective found. What is left at the end has a proven bound.

A table is cheap where the limit of its sum is near to a bound that is known, and dear where it is far. So it is filled
from the bound up, and where nothing is found soon, the box is halved again, which brings its bound nearer to the truth.
Nothing is thrown away: a box that the search for the best closes may hold the runner-up, whose search goes on with it.
Source: the limits that grow are Korf, "Depth-first iterative-deepening", 1985.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pipesvc.core.partition_bound import Bound, bound
from pipesvc.core.partition_capped import TOLERANCE, Capped, Caps
from pipesvc.core.partition_problem import INFINITY, FloatArray, Kinds, Problem, score
from pipesvc.core.partition_states import States
from pipesvc.core.partition_table import Route, cheapest

# Tables filled at most for one search; far more than planning has been seen to need. It bounds the time, not the truth:
# a search that stops here says how far it has come.
MAX_FILLED: Final = 1000

# Parts of the best objective: how far above a box's smallest sum the first table for it reaches, and how far one change
# of the prices tries to raise that. With halves or twice as much it takes about as long.
_FIRST_REACH: Final = 0.0025
_PRICE_REACH: Final = 0.06
# By what the reach grows where it was not enough. Where bounds stay far below the truth, because of memory or because
# the best plan is excluded, this keeps boxes from being halved again and again for nothing.
_GROWTH: Final = 4.0

# A part of the objective. A search that has no further to go takes up the boxes that the one before it left; for one
# that has, those are too small and too many.
_NEAR: Final = 0.01
# A box is not halved where what its bound lacks is so many times its width: halves would not bring it there.
_NARROW: Final = 16


class Box(NamedTuple):
    """Plans whose bottleneck and largest update lie in these ranges; `bound_s` is below each one's objective."""

    bound_s: float
    total_s: float  # no plan of the box has a smaller sum
    bottleneck_s: tuple[float, float]
    update_s: tuple[float, float]
    reach: float  # of the first table
    is_closed: bool = False  # tables have shown that no plan of it was good enough; a later search may ask for less


@dataclass(frozen=True, slots=True)
class Found:
    """A route, its objective, and what no other route that was allowed can be below."""

    route: Route
    objective_s: float
    lower_bound_s: float


class Cheapest(NamedTuple):
    """A route below caps, and the parts of its objective."""

    route: Route
    total_s: float
    bottleneck_s: float
    update_s: float


@dataclass(slots=True, kw_only=True)
class Search:
    """Searches of one problem: routes and prices that one has seen are a start for the next."""

    problem: Problem
    kinds: Kinds
    states: Sequence[States]
    excluded: tuple[int, ...] = ()  # a number of devices of each kind that no route may use
    seen: list[tuple[float, Route]] = field(default_factory=list)  # objectives and routes
    best: Route | None = None
    best_s: float = INFINITY
    num_filled: int = 0
    boxes: list[Box] = field(default_factory=list)  # a heap; what no search has had to look into
    prices_s: list[FloatArray] = field(init=False)  # of each of the `states`, what was best last

    def __post_init__(self) -> None:
        self.prices_s = [np.zeros(len(self.kinds.members)) for _ in self.states]

    @property
    def later(self) -> int:
        """How many micro-batches wait for the bottleneck."""
        return self.problem.num_micro_batches - 1

    def run(self, excluded: tuple[int, ...] = ()) -> Found | None:
        """The best route that does not use just `excluded` devices of each kind, or None where there is none."""
        self.excluded, self.num_filled = excluded, 0
        self.best, self.best_s = None, INFINITY
        for objective_s, route in self.seen:
            self._offer(objective_s, route)
        if self.best is None or not self.boxes or self.boxes[0].bound_s < self.best_s * (1 - _NEAR):
            self._push_all(self._first())
        if self.best is None:
            return None
        lower_bound_s = self.best_s
        while self.boxes and self.boxes[0].bound_s < self.best_s * (1 - TOLERANCE):
            if self.num_filled >= MAX_FILLED:
                lower_bound_s = self.boxes[0].bound_s
                break
            for part in self._parts(heapq.heappop(self.boxes)):
                self._push(part)
        return Found(self.best, self.best_s, min(lower_bound_s, self.best_s))

    def _offer(self, objective_s: float, route: Route) -> None:
        if objective_s < self.best_s * (1 - TOLERANCE) and route.used(len(self.kinds.members)) != self.excluded:
            self.best, self.best_s = route, objective_s

    def _first(self) -> float:
        """Finds any route below a bottleneck cap that grows; returns what no bottleneck is below."""
        states = self.states[0]
        least_s = np.diff(states.least_s)
        low = max(float(least_s.max()), float(least_s.sum()) / float(states.room[0][0]))
        cap, most = low * 1.02, self._largest_bottleneck_s()
        while (found := self._fill(self._capped(Caps(bottleneck_s=cap)))) is None:
            if cap >= most:
                return low
            low, cap = _above(cap), min(most, low + 2 * (cap - low) + most * 1e-3)
        # Once more, half as far: with many micro-batches the bottleneck is what counts.
        middle = (low + found.bottleneck_s) / 2
        return low if self._fill(self._capped(Caps(bottleneck_s=middle))) else _above(middle)

    def _push_all(self, low: float) -> None:
        """All plans: a box with those that may be better than the best yet, and boxes around it with the others."""
        self.boxes.clear()
        total_s = float(self.states[0].least_s[-1])
        updates = np.diff(self.kinds.update_s, axis=1)
        low_update = float(np.where(np.diff(self.kinds.num_barred, axis=1) == 0, updates, np.inf).min(axis=0).max())
        most, most_update = self._largest_bottleneck_s(), float(self.kinds.update_s[:, -1].max())
        high, spare_s = most, self.best_s - total_s - low_update
        if self.later:
            high = min(high, spare_s / self.later)
        high_update = self.best_s - total_s - self.later * low
        for bottleneck_s, update_s in (
            ((low, high), (low_update, high_update)),
            ((low, high), (max(low_update, _above(high_update)), most_update)),
            ((max(low, _above(high)), most), (low_update, most_update)),
        ):
            self._push(self._box(total_s, bottleneck_s, update_s, _FIRST_REACH))

    def _largest_bottleneck_s(self) -> float:
        """No plan can exceed it."""
        sent = self.problem.crossing
        slowest = float(self.kinds.s_per_byte.max(initial=0.0))
        busiest = float(max(sent.forward_bytes.max(), sent.backward_bytes.max()))
        return max(float(self.kinds.stage_s[:, -1].max()), slowest * busiest)

    def _capped(self, caps: Caps) -> list[Capped]:
        return [Capped(states, caps) for states in self.states]

    def _bounds(self, capped: Sequence[Capped], limit_s: float, reach_s: float) -> list[Bound]:
        """A bound for each of the states; prices that were good for one box are a good start for the next."""
        bounds = [
            bound(each, prices_s, enough_s=limit_s, reach_s=reach_s)
            for each, prices_s in zip(capped, self.prices_s, strict=True)
        ]
        self.prices_s = [each.prices_s for each in bounds]
        return bounds

    def _fill(
        self, capped: Sequence[Capped], bounds: Sequence[Bound | None] = (), limit_s: float = INFINITY
    ) -> Cheapest | None:
        """The route with the smallest sum within the limit."""
        best: Cheapest | None = None
        for each, below in zip(capped, bounds or [None] * len(capped), strict=True):
            self.num_filled += 1
            route = cheapest(each, self.excluded, below=below, limit_s=limit_s)
            if route is None:
                continue
            parts = score(self.kinds, self.problem.crossing, route.edges, route.kinds)
            objective_s = parts.objective_s(self.problem.num_micro_batches)
            self.seen.append((objective_s, route))
            self._offer(objective_s, route)
            if best is None or parts.total_s < best.total_s * (1 - TOLERANCE):
                best = Cheapest(route, *parts)
        return best

    def _box(
        self, total_s: float, bottleneck_s: tuple[float, float], update_s: tuple[float, float], reach: float
    ) -> Box:
        return Box(total_s + self.later * bottleneck_s[0] + update_s[0], total_s, bottleneck_s, update_s, reach)

    def _push(self, box: Box) -> None:
        (low, high), (low_update, high_update) = box.bottleneck_s, box.update_s
        if low <= high and low_update <= high_update:
            heapq.heappush(self.boxes, box)

    def _width_s(self, box: Box) -> float:
        """By how much the upper corner of a box is above its lower one."""
        (low, high), (low_update, high_update) = box.bottleneck_s, box.update_s
        return self.later * (high - low) + high_update - low_update

    def _parts(self, box: Box) -> Iterator[Box]:
        """What is left of a box after the half with the lower caps on its more valuable side was tried."""
        if box.is_closed or _NARROW * self._width_s(box) <= self.best_s - box.bound_s:
            yield from self._tried(box)
            return
        (low, high), (low_update, high_update) = box.bottleneck_s, box.update_s
        if high_update - low_update > self.later * (high - low):
            middle, middle_update = high, _half(low_update, high_update)
            upper = box.bottleneck_s, (_above(middle_update), high_update)
        else:
            middle, middle_update = _half(low, high), high_update
            upper = (_above(middle), high), box.update_s
        yield self._box(box.total_s, *upper, box.reach * _GROWTH)
        yield from self._tried(self._box(box.total_s, (low, middle), (low_update, middle_update), box.reach))

    def _tried(self, box: Box) -> Iterator[Box]:
        """What is left of a box after tables were filled below its caps, until something is found or halves are due."""
        (low, high), (low_update, high_update) = box.bottleneck_s, box.update_s
        width_s = self._width_s(box)
        limit_s = self.best_s - self.later * low - low_update
        capped = self._capped(Caps(high, high_update))
        bounds = self._bounds(capped, limit_s, _PRICE_REACH * self.best_s)
        bound_s = first_s = max(box.total_s, min(each.total_s for each in bounds))
        for cap_s in _growing(bound_s, limit_s, box.reach * self.best_s):
            found = self._fill(capped, bounds, cap_s)
            if found is not None:
                yield from self._around(box, found)
                return
            bound_s = cap_s
            if width_s > cap_s - first_s:
                break
        left = self._box(bound_s, box.bottleneck_s, box.update_s, box.reach * _GROWTH)
        yield left._replace(is_closed=bound_s >= limit_s)

    def _around(self, box: Box, found: Cheapest) -> Iterator[Box]:
        """A box in parts; the last has plans that are no better, in sum, bottleneck and update, than the one found."""
        (low, high), (low_update, high_update) = box.bottleneck_s, box.update_s
        below = low, min(high, _below(found.bottleneck_s))
        above = max(low, found.bottleneck_s), high
        below_update = low_update, min(high_update, _below(found.update_s))
        above_update = max(low_update, found.update_s), high_update
        yield self._box(found.total_s, below, box.update_s, box.reach)
        yield self._box(found.total_s, above, below_update, box.reach)
        yield self._box(found.total_s, above, above_update, box.reach)


def _growing(bound_s: float, limit_s: float, reach_s: float) -> Iterator[float]:
    """Limits from a bound up to the last one, which is the limit itself; none where the bound is above it."""
    while bound_s <= limit_s:
        cap_s = min(bound_s + reach_s, limit_s)
        yield cap_s
        if cap_s == limit_s:
            return
        reach_s *= _GROWTH


def _half(low: float, high: float) -> float:
    """The middle, or the upper end where the two are equal but for rounding."""
    return (low + high) / 2 if high - low > TOLERANCE * high else high


def _below(value: float) -> float:
    """Nothing is below 0."""
    return value * (1 - 2 * TOLERANCE) if value > 0 else -1.0


def _above(value: float) -> float:
    return value * (1 + TOLERANCE / 2)
