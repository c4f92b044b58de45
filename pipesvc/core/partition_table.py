"""The cheapest cut and places of stages under caps on the largest stage time and update time: a dynamic program.

With both caps given, what is left to minimise is a sum, so the last stages can be decided without knowing the first.
The program goes from the last stage back, because the number of micro-batches alive on a stage, and so its memory,
depends on how many stages come after it. Its entries are (how many devices of each kind are used, where the suffix
begins, which kind holds its first stage). With K kinds of one device each that is the subset program over devices;
with one kind it is the usual one over the number of stages. It is exact, unlike links included. Tight caps leave few
entries of each state, so only those that a plan can still be made of are carried on.

Source: the subset program for ordering tasks is Held and Karp, "A dynamic programming approach to sequencing
problems", 1962; cutting a chain is Bellman's.

Legend: L layers, N states of a level, G groups of kinds by link, W the most layers of a stage below the caps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pipesvc.core.partition_memory import Alive
from pipesvc.core.partition_problem import INFINITY, BoolArray, FloatArray
from pipesvc.core.partition_states import IndexArray, States

# The sums of equal times in another order differ in the last digits.
TOLERANCE: Final = 1e-9
# Stands for every number of micro-batches alive with which memory does not matter.
_ROOMY: Final = None


class Caps(NamedTuple):
    """What no plan may exceed; `total_s` bounds the sum that is minimised. In seconds."""

    bottleneck_s: float = INFINITY
    update_s: float = INFINITY
    total_s: float = INFINITY


class Route(NamedTuple):
    """A cut and the kind of each stage."""

    edges: tuple[int, ...]  # 0, the boundaries, L
    kinds: tuple[int, ...]

    def used(self, num_kinds: int) -> tuple[int, ...]:
        """How many devices of each kind."""
        return tuple(self.kinds.count(kind) for kind in range(num_kinds))


def cheapest(states: States, caps: Caps, excluded: tuple[int, ...] = ()) -> Route | None:
    """The route with the smallest sum of stage times and hops below the caps, or None.

    A route that uses just `excluded` devices of each kind does not count. Of equal sums, fewer stages win, then kinds
    that come first.
    """
    table = _Table(states, caps)
    table.fill()
    best: tuple[float, int, int, int] | None = None
    for num_stages in states.stage_counts:
        if num_stages >= len(table.values):
            break
        ends = table.values[num_stages][:, :, 0].copy()
        if excluded:
            ends[:, (states.levels[num_stages] == np.array(excluded)).all(axis=1)] = INFINITY
        state, group = divmod(int(ends.T.argmin()), len(states.groups))
        value = float(ends[group, state])
        limit = caps.total_s * (1 + TOLERANCE) if best is None else best[0] * (1 - TOLERANCE)
        if value < INFINITY and value <= limit:
            best = value, num_stages, state, group
    return None if best is None else table.route(*best[1:])


@dataclass(slots=True)
class _Table:
    """The program for one pair of caps."""

    states: States
    caps: Caps
    values: list[FloatArray] = field(default_factory=list)  # per level [G, N, L + 1]: the smallest sum of a suffix
    hop_s: FloatArray = field(init=False)  # [K, G, L + 1], infinite where a link is busy for longer than the cap
    last_end: dict[int, IndexArray] = field(default_factory=dict)  # per kind [L]: see `_last_end`
    bands: dict[tuple[int, Alive | None], FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cap_s = self.caps.bottleneck_s * (1 + TOLERANCE)
        self.hop_s = np.where(self.states.busy_s <= cap_s, self.states.hop_s, INFINITY)

    def fill(self) -> None:
        """All levels, the suffix of no layers first, until no suffix can be made longer."""
        states = self.states
        num_edges = states.problem.num_layers + 1
        first = np.full((len(states.groups), 1, num_edges), INFINITY)
        first[0, 0, -1] = 0.0
        self.values.append(first)
        group_of = {kind: group for group, kinds in enumerate(states.groups) for kind in kinds}
        for level, steps in enumerate(states.steps):
            old = self.values[level]
            live = np.flatnonzero(self._is_live(level))
            if not len(live):
                break
            state, edge = np.divmod(live, num_edges)
            carried = old.reshape(len(states.groups), -1)[:, live]
            new = np.full((len(states.groups), len(states.levels[level + 1]), num_edges), INFINITY)
            for step in steps:
                target = step.target[state]
                keep = np.flatnonzero(target >= 0)
                if len(keep):
                    after = self._after(carried[:, keep], edge[keep], step.kind, level)
                    band = self._band(step.kind, states.alive[level])
                    _extend(new[group_of[step.kind]], target[keep], edge[keep], after, band)
            self.values.append(new)

    def _is_live(self, level: int) -> BoolArray:
        """[N, L + 1]: the sum stays below its cap, and the unused devices can hold what is left, as far as is known."""
        states, caps = self.states, self.caps
        best = self.values[level].min(axis=0)
        rest_s = best + states.least_s * (1 - TOLERANCE)
        is_live = np.isfinite(best) & (rest_s <= caps.total_s * (1 + TOLERANCE))
        if caps.bottleneck_s < INFINITY:
            reach_s = caps.bottleneck_s * (1 + TOLERANCE) * states.room[level]
            is_live &= states.least_s * (1 - TOLERANCE) <= reach_s[:, None]
        return np.asarray(is_live)

    def _after(self, values: FloatArray, edge: IndexArray, kind: int, level: int) -> FloatArray:
        """The smallest sum of suffixes ([G, entries]) and of the hop to them from a stage of this kind."""
        return np.asarray((values + self.hop_s[kind][:, edge]).min(axis=0) if level else values[0])

    def _last_end(self, kind: int) -> IndexArray:
        """[L]: the furthest end of a stage from each layer below the caps."""
        last_end: IndexArray = self.states.last_end[kind]
        kinds, caps = self.states.kinds, self.caps
        for sums, cap in ((kinds.stage_s[kind], caps.bottleneck_s), (kinds.update_s[kind], caps.update_s)):
            if cap < INFINITY:
                last_end = np.minimum(last_end, sums.searchsorted(sums[:-1] + cap * (1 + TOLERANCE), "right") - 1)
        return last_end

    def _band(self, kind: int, alive: Alive) -> FloatArray:
        """[W, L]: the time of a stage of w + 1 layers from each layer, infinite where it is not allowed."""
        key = kind, alive
        if key not in self.bands:
            self.bands[key] = self._new_band(kind, alive)
        return self.bands[key]

    def _new_band(self, kind: int, alive: Alive) -> FloatArray:
        states, problem = self.states, self.states.problem
        if kind not in self.last_end:
            self.last_end[kind] = self._last_end(kind)
        last_end = self.last_end[kind]
        first = states.first
        stage_s, cap = states.kinds.stage_s[kind], states.kinds.memory_bytes[kind]
        held, (slots_before, slots_after) = states.held[alive], states.slots[alive]
        # All parts of the sum but the slots grow with the stage, so they limit its end first.
        most_slots = slots_before.max() + slots_after.max()
        is_tight = cap < INFINITY and (held[last_end] - held[first]).max() + most_slots > cap
        if not is_tight and (kind, _ROOMY) in self.bands:
            return self.bands[kind, _ROOMY]
        if is_tight:
            last_end = np.minimum(last_end, held.searchsorted(held[:-1] + cap, "right") - 1)
        width = int((last_end - first)[problem.may_cut[:-1]].max(initial=0))
        end = first + np.arange(1, width + 1)[:, None]
        is_allowed = (end <= last_end) & problem.may_cut[:-1]
        end = np.minimum(end, problem.num_layers)
        if is_tight:
            is_allowed &= held[end] - held[first] + slots_before[first] + slots_after[end] <= cap
        band = np.where(is_allowed, stage_s[end] - stage_s[first], INFINITY)
        if not is_tight:
            self.bands[kind, _ROOMY] = band
        return band

    def route(self, num_stages: int, state: int, group: int) -> Route:
        """Back along the minima, from the first stage to the last."""
        states = self.states
        edges, places = [0], []
        for level in reversed(range(num_stages)):
            first = edges[-1]
            best = (INFINITY, 0, 0, 0)
            for step in states.steps[level]:
                sources = np.flatnonzero(step.target == state)
                band = self._band(step.kind, states.alive[level])[: states.problem.num_layers - first, first]
                if step.kind not in states.groups[group] or not len(sources) or not len(band):
                    continue
                ends = first + 1 + np.arange(len(band))
                values = self.values[level][:, sources[0], ends]
                cost = band + self._after(values, ends, step.kind, level)
                if cost.min() < best[0]:
                    best = (float(cost.min()), step.kind, int(sources[0]), int(ends[cost.argmin()]))
            _, kind, state, end = best
            edges.append(end)
            places.append(kind)
            group = int((self.hop_s[kind, :, end] + self.values[level][:, state, end]).argmin())
        return Route(tuple(edges), tuple(places))


def _extend(new: FloatArray, target: IndexArray, edge: IndexArray, after: FloatArray, band: FloatArray) -> None:
    """One more stage in front of each entry, of every length that the band allows; `new` is [N, L + 1]."""
    flat = new.reshape(-1)
    base = target * new.shape[1]
    nearest = int(edge.min())
    for index, row in enumerate(band):
        if nearest <= index:  # some suffixes have fewer layers before them
            inside = np.flatnonzero(edge > index)
            base, edge, after = base[inside], edge[inside], after[inside]
            nearest = int(edge.min(initial=len(row) + 1))
        first = edge - 1 - index
        # Entries differ in state or edge, so no two of one length meet.
        place = base + first
        flat[place] = np.minimum(flat[place], after + row[first])
