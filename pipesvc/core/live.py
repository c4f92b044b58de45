"""How many micro-batches are alive: the one way to count them, for bounds, checker, simulator and memory.

A micro-batch lives on a stage from its forward to its whole backward or, if that is split, to its W: so long the
activations are kept. All of this happens on the stage's own worker, so a list tells its peaks without any other list.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipesvc.core.actions import Action, ActionKind


def live_change(action: Action) -> int:
    """By how many micro-batches alive on its stage this action changes."""
    match action.kind:
        case ActionKind.FORWARD:
            return 1
        case ActionKind.BACKWARD | ActionKind.WEIGHT_BACKWARD:
            return -1
        case _:
            return 0


def live_peaks(actions: Sequence[Action]) -> dict[int, int]:
    """The most micro-batches alive at once on each stage, if this list of a worker runs in order: its bounds."""
    live: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for action in actions:
        live[action.stage] = live.get(action.stage, 0) + live_change(action)
        peaks[action.stage] = max(peaks.get(action.stage, 0), live[action.stage])
    return peaks


def worker_peak(actions: Sequence[Action]) -> int:
    """The most micro-batches alive at once on all stages of a worker together, if its list runs in order."""
    live = peak = 0
    for action in actions:
        live += live_change(action)
        peak = max(peak, live)
    return peak
