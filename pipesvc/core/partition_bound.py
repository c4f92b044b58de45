"""What the rest of a plan costs at least, whichever devices are left: it keeps the exact program small.

The exact program must know which devices a suffix of stages has used, and there are exponentially many answers. If
devices may be used again and again, that does not matter and the program is small; but it would use the fastest
device for everything. So here the use of a device has a price, and a plan gets back the prices of all devices that it
still has: a plan that uses each device once can cost no less than that. Prices rise where the relaxed plan uses more
devices than there are, which brings the bound near to the truth.

Source: relaxing the states is Christofides, Mingozzi and Toth, "State-space relaxation procedures for the computation
of bounds to routing problems", 1981; prices are Held and Karp, "The traveling-salesman problem and minimum spanning
trees: part II", 1971, with the steps of Polyak, "Minimization of unsmooth functionals", 1969.

Legend: L layers, K kinds of devices, G groups of kinds by link, W the most layers of a stage below the caps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipesvc.core.partition_capped import Capped
from pipesvc.core.partition_problem import INFINITY, FloatArray

# Changes of the prices at most for one bound. More bring it nearer and cost more than they save.
_MAX_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound for plans and, less the prices of its unused devices, for what is in front of any suffix. In seconds."""

    total_s: float
    rest_s: tuple[FloatArray, ...]  # by number of stages in the suffix [G, L + 1]: by its first kind and first layer
    prices_s: FloatArray  # [K]


def bound(capped: Capped, prices_s: FloatArray, *, enough_s: float, reach_s: float) -> Bound:
    """A bound on the sum of stage times and hops of every plan below the caps, improved from these prices on.

    It stops where the bound is above `enough_s`. `reach_s` is by how much a change of the prices tries to raise it.
    """
    sizes = capped.states.sizes
    best: Bound | None = None
    for _ in range(_MAX_ROUNDS):
        relaxed = _Relaxed(capped, prices_s)
        total_s = float(relaxed.rest_s[0][0, -1]) - float(sizes @ prices_s)
        if best is None or total_s > best.total_s:
            best = Bound(total_s, tuple(relaxed.rest_s), prices_s)
        if total_s > enough_s or total_s == INFINITY:
            break
        excess = relaxed.uses() - sizes
        excess[(prices_s <= 0) & (excess < 0)] = 0.0
        if not excess.any():
            break
        wanted_s = min(enough_s, best.total_s + reach_s) - total_s
        prices_s = np.maximum(0.0, prices_s + wanted_s / float(excess @ excess) * excess)
    assert best is not None
    return best


class _Relaxed:
    """The cheapest plans whose stages may share devices, for one choice of prices; in lists by stages of the suffix."""

    def __init__(self, capped: Capped, prices_s: FloatArray) -> None:
        states = capped.states
        num_kinds, num_groups, num_edges = capped.hop_s.shape
        self._capped, self._width = capped, int(capped.widths.max())
        num_levels = len(states.steps)
        self.rest_s = [np.full((num_groups, num_edges), INFINITY) for _ in range(num_levels + 1)]
        # [K, W + L + 1]: with a stage of this kind begun at a layer, after W entries that no plan has.
        self._begun_s = np.full((num_levels, num_kinds, self._width + num_edges), INFINITY)
        # [K, W, L + 1]: the same, one layer earlier from row to row.
        windows = np.lib.stride_tricks.sliding_window_view(self._begun_s, num_edges, axis=2)
        self._earlier_s = windows[:, :, :-1][:, :, ::-1]
        self._ended_s = [np.empty((num_kinds, num_edges))] * num_levels  # with a stage of this kind before a layer
        for level in reversed(range(num_levels + 1)):
            if level < num_levels:
                self._add_stage(level, prices_s)
            if level in states.stage_counts:
                self.rest_s[level][:, 0] = 0.0

    def _add_stage(self, level: int, prices_s: FloatArray) -> None:
        """The stage in front of a suffix is the last of what is in front of it."""
        capped, states = self._capped, self._capped.states
        kinds = [step.kind for step in states.steps[level]]
        self._begun_s[level][kinds, self._width :] = (
            self.rest_s[level + 1][states.group_of[kinds]] + prices_s[kinds, None]
        )
        ended_s = (self._earlier_s[level] + capped.bands(states.alive[level])).min(axis=1, initial=INFINITY)
        hop_s = capped.hop_s if level else np.zeros_like(capped.hop_s)
        self._ended_s[level] = ended_s
        self.rest_s[level] = (ended_s[:, None] + hop_s).min(axis=0)

    def uses(self) -> FloatArray:
        """[K]: how often the cheapest plan uses a device of each kind."""
        capped, states = self._capped, self._capped.states
        uses = np.zeros(len(states.sizes))
        end, level = self.rest_s[0].shape[1] - 1, 0
        hop_s = np.zeros(len(uses))
        while end:
            kind = int((self._ended_s[level][:, end] + hop_s).argmin())
            uses[kind] += 1
            band = capped.bands(states.alive[level])[kind, ::-1, end]
            end += int((self._begun_s[level][kind, end : end + self._width] + band).argmin()) - self._width
            hop_s = capped.hop_s[:, states.group_of[kind], end]
            level += 1
        return uses
