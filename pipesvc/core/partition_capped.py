"""The stages and hops that caps leave, as arrays.

Apart from the exact program, because its relaxation adds up the same arrays.

Legend: L layers, K kinds of devices, G groups of kinds by link, W the most layers of a stage below the caps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pipesvc.core.partition_memory import Alive
from pipesvc.core.partition_problem import INFINITY, FloatArray
from pipesvc.core.partition_states import IndexArray, States

# The sums of equal times in another order differ in the last digits.
TOLERANCE: Final = 1e-9
# Stands for every number of micro-batches alive with which memory does not matter.
_ROOMY: Final = None


class Caps(NamedTuple):
    """What no stage may exceed, and of `bottleneck_s` no link either. In seconds."""

    bottleneck_s: float = INFINITY
    update_s: float = INFINITY


@dataclass(slots=True)
class Capped:
    """What is left of the stages and hops of some states."""

    states: States
    caps: Caps
    hop_s: FloatArray = field(init=False)  # [K, G, L + 1], infinite where a link is busy for longer than the cap
    last_end: IndexArray = field(init=False)  # [K, L]: the furthest end of a stage from each layer
    widths: IndexArray = field(init=False)  # [K]: the most layers of a stage
    _bands: dict[Alive | None, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        states, caps = self.states, self.caps
        self.hop_s = np.where(states.busy_s <= caps.bottleneck_s * (1 + TOLERANCE), states.hop_s, INFINITY)
        last_end = [states.last_end]
        for sums, cap in ((states.kinds.stage_s, caps.bottleneck_s), (states.kinds.update_s, caps.update_s)):
            if cap < INFINITY:
                ends = [each.searchsorted(each[:-1] + cap * (1 + TOLERANCE), "right") - 1 for each in sums]
                last_end.append(np.array(ends))
        self.last_end = np.min(last_end, axis=0)
        self.widths = (self.last_end - states.first)[:, states.problem.may_cut[:-1]].max(axis=1, initial=0)

    def bands(self, alive: Alive) -> FloatArray:
        """[K, W, L + 1]: the time of a stage of w + 1 layers up to each end, infinite where it is not allowed."""
        if alive not in self._bands:
            self._bands[alive] = self._new_bands(alive)
        return self._bands[alive]

    def _new_bands(self, alive: Alive) -> FloatArray:
        states, problem = self.states, self.states.problem
        caps = states.kinds.memory_bytes[:, None]
        held, (slots_before, slots_after) = states.held[alive], states.slots[alive]
        copies = problem.memory.copies
        # All parts of the sum but the slots grow with the stage.
        most_more = slots_before.max() + slots_after.max() + (copies.max() if copies is not None else 0)
        is_tight = bool((held[self.last_end] - held[:-1] + most_more > caps).any())
        if not is_tight and _ROOMY in self._bands:
            return self._bands[_ROOMY]
        end = np.arange(problem.num_layers + 1)
        first = end - np.arange(1, int(self.widths.max()) + 1)[:, None]
        is_stage = (first >= 0) & problem.may_cut[first]
        is_allowed = is_stage & (end <= self.last_end[:, first % problem.num_layers])
        if is_tight:
            needed = held[end] - held[first] + slots_before[first] + slots_after[end]
            is_allowed &= needed + (copies[first, end] if copies is not None else 0) <= caps[:, :, None]
        sums = states.kinds.stage_s
        bands = np.where(is_allowed, sums[:, None] - sums[:, first], INFINITY)
        if not is_tight:
            self._bands[_ROOMY] = bands
        return bands
