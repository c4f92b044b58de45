"""What every step has once for each stage, whatever its schedule: it comes after the backwards."""

from __future__ import annotations

from collections.abc import Sequence

from pipesvc.core.actions import Action, ActionKind


def once_a_step(stages: Sequence[int], *, clips: bool) -> list[Action]:
    """The end of the list of a worker with these stages: norms and stage 0's decision with clipping, then updates."""
    actions = [Action(stage, ActionKind.NORM) for stage in stages if clips]
    if clips and 0 in stages:
        actions.append(Action(0, ActionKind.DECIDE))
    return actions + [Action(stage, ActionKind.UPDATE) for stage in stages]
