"""What every step has once for each stage, whatever its schedule: it comes after the backwards."""

from __future__ import annotations

from collections.abc import Sequence

from pipesvc.core.actions import Action, ActionKind


def once_a_step(stages: Sequence[int], *, decides: bool) -> list[Action]:
    """The end of the list of a worker with these stages: reports and stage 0's decision, if any, then updates."""
    actions = [Action(stage, ActionKind.NORM) for stage in stages if decides]
    if decides and 0 in stages:
        actions.append(Action(0, ActionKind.DECIDE))
    return actions + [Action(stage, ActionKind.UPDATE) for stage in stages]
