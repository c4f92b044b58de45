"""The cheapest cut and places of stages under caps on the largest stage time and update time: a dynamic program.

With both caps given, what is left to minimise is a sum, so the last stages can be decided without knowing the first.
The program goes from the last stage back, because the number of micro-batches alive on a stage, and so its memory,
depends on how many stages come after it. Its entries are (how many devices of each kind are used, where the suffix
begins, which kind holds its first stage). With K kinds of one device each that is the subset program over devices;
with one kind it is the usual one over the number of stages. It is exact, unlike links included. Only entries are
carried on of which a plan below the cap on the sum can still be made, as far as the bound of `partition_bound` tells.

Source: the subset program for ordering tasks is Held and Karp, "A dynamic programming approach to sequencing
problems", 1962; cutting a chain is Bellman's.

Legend: L layers, N states of a level that are reached, G groups of kinds by link, W the most layers of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pipesvc.core.partition_bound import Bound
from pipesvc.core.partition_capped import TOLERANCE, Capped
from pipesvc.core.partition_problem import INFINITY, BoolArray, FloatArray
from pipesvc.core.partition_states import IndexArray

# Stages that are tried at once: enough to hide the price of a call, few enough to stay in the cache.
_BLOCK: Final = 1 << 16


class Route(NamedTuple):
    """A cut and the kind of each stage."""

    edges: tuple[int, ...]  # 0, the boundaries, L
    kinds: tuple[int, ...]

    def used(self, num_kinds: int) -> tuple[int, ...]:
        """How many devices of each kind."""
        return tuple(self.kinds.count(kind) for kind in range(num_kinds))


def cheapest(
    capped: Capped, excluded: tuple[int, ...] = (), *, below: Bound | None = None, limit_s: float = INFINITY
) -> Route | None:
    """The route with the smallest sum of stage times and hops, in seconds, or None where none is within the limit.

    `below` keeps the program small; the nearer the limit is to it, the smaller. A route that uses just `excluded`
    devices of each kind does not count. Of equal sums, fewer stages win, then kinds that come first.
    """
    table = _Table(capped, below, limit_s)
    table.fill()
    best = table.best(excluded)
    return None if best is None else table.route(*best)


@dataclass(slots=True)
class _Table:
    """The program for one pair of caps and one limit of the sum, in seconds."""

    capped: Capped
    below: Bound | None
    limit_s: float
    reached: list[IndexArray] = field(default_factory=list)  # per level [N]: indices of states, ascending
    values: list[FloatArray] = field(default_factory=list)  # per level [G, N, L + 1]: the smallest sum of a suffix

    def fill(self) -> None:
        """All levels, the suffix of no layers first, until no suffix can be made longer."""
        states = self.capped.states
        num_edges = states.problem.num_layers + 1
        first = np.full((len(states.groups), 1, num_edges), INFINITY)
        first[0, 0, -1] = 0.0
        self.reached.append(np.zeros(1, np.intp))
        self.values.append(first)
        for level, steps in enumerate(states.steps):
            live = np.flatnonzero(self._is_live(level))
            if not len(live):
                break
            state, edge = np.divmod(live, num_edges)
            carried = self.values[level].reshape(len(states.groups), -1)[:, live]
            source = self.reached[level][state]
            targets = [(step.kind, step.target[source]) for step in steps]
            is_reached = np.zeros(len(states.levels[level + 1]), np.bool_)
            for _, target in targets:
                is_reached[target[target >= 0]] = True
            reached, place = np.flatnonzero(is_reached), np.cumsum(is_reached) - 1
            new = np.full((len(states.groups), len(reached), num_edges), INFINITY)
            bands = self.capped.bands(states.alive[level])
            for kind, target in targets:
                keep = np.flatnonzero(target >= 0)
                if len(keep):
                    after = self._after(carried[:, keep], edge[keep], kind, level)
                    band = bands[kind, : self.capped.widths[kind]]
                    _extend(new[states.group_of[kind]], place[target[keep]], edge[keep], after, band)
            self.reached.append(reached)
            self.values.append(new)

    def _is_live(self, level: int) -> BoolArray:
        """[N, L + 1]: a plan within the limit can still be made, as far as is known."""
        states, reached, values = self.capped.states, self.reached[level], self.values[level]
        if self.below is None:
            is_live = np.isfinite(values.min(axis=0))
        else:
            total_s = np.full(values.shape[1:], INFINITY)
            for value, rest_s in zip(values, self.below.rest_s[level], strict=True):
                np.minimum(total_s, value + rest_s, out=total_s)
            refund_s = (states.sizes - states.levels[level][reached]) @ self.below.prices_s
            is_live = np.isfinite(total_s) & (total_s <= (self.limit_s + refund_s[:, None]) * (1 + TOLERANCE))
        if self.capped.caps.bottleneck_s < INFINITY:  # the unused devices can hold what is left
            reach_s = self.capped.caps.bottleneck_s * (1 + TOLERANCE) * states.room[level][reached]
            is_live &= states.least_s * (1 - TOLERANCE) <= reach_s[:, None]
        return np.asarray(is_live)

    def _after(self, values: FloatArray, edge: IndexArray, kind: int, level: int) -> FloatArray:
        """The smallest sum of suffixes ([G, entries]) and of the hop to them from a stage of this kind."""
        return np.asarray((values + self.capped.hop_s[kind][:, edge]).min(axis=0) if level else values[0])

    def best(self, excluded: tuple[int, ...]) -> tuple[int, int, int] | None:
        """Number of stages, state and group of the cheapest plan within the limit."""
        states = self.capped.states
        best: tuple[float, int, int, int] | None = None
        for num_stages in states.stage_counts:
            if num_stages >= len(self.values) or not len(self.reached[num_stages]):
                break
            ends = self.values[num_stages][:, :, 0].copy()
            if excluded:
                used = states.levels[num_stages][self.reached[num_stages]]
                ends[:, (used == np.array(excluded)).all(axis=1)] = INFINITY
            state, group = divmod(int(ends.T.argmin()), len(states.groups))
            value = float(ends[group, state])
            limit = self.limit_s * (1 + TOLERANCE) if best is None else best[0] * (1 - TOLERANCE)
            if value < INFINITY and value <= limit:
                best = value, num_stages, state, group
        return None if best is None else best[1:]

    def route(self, num_stages: int, state: int, group: int) -> Route:
        """Back along the minima, from the first stage to the last."""
        states = self.capped.states
        edges, places = [0], []
        for level in reversed(range(num_stages)):
            first = edges[-1]
            best = (INFINITY, 0, 0, 0)
            bands = self.capped.bands(states.alive[level])
            for step in states.steps[level]:
                sources = np.flatnonzero(step.target[self.reached[level]] == self.reached[level + 1][state])
                num_ends = min(int(self.capped.widths[step.kind]), states.problem.num_layers - first)
                if step.kind not in states.groups[group] or not len(sources) or not num_ends:
                    continue
                ends = first + 1 + np.arange(num_ends)
                values = self.values[level][:, sources[0], ends]
                cost = bands[step.kind, np.arange(num_ends), ends] + self._after(values, ends, step.kind, level)
                if cost.min() < best[0]:
                    best = (float(cost.min()), step.kind, int(sources[0]), int(ends[cost.argmin()]))
            _, kind, state, end = best
            edges.append(end)
            places.append(kind)
            group = int((self.capped.hop_s[kind, :, end] + self.values[level][:, state, end]).argmin())
        return Route(tuple(edges), tuple(places))


def _extend(new: FloatArray, target: IndexArray, edge: IndexArray, after: FloatArray, band: FloatArray) -> None:
    """One more stage in front of each entry, of every length that the band allows; `new` is [N, L + 1]."""
    flat, place = new.reshape(-1), target * new.shape[1] + edge
    num_rows = max(1, _BLOCK // len(edge))
    for begin in range(0, len(band), num_rows):
        value_s = after + band[begin : begin + num_rows, edge]
        row, entry = np.nonzero(value_s < INFINITY)
        np.minimum.at(flat, place[entry] - (begin + 1) - row, value_s[row, entry])
