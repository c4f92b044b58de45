"""Which pending action runs next: the one rule that the executor and the simulator share.

Running a list strictly in order idles whenever one message is late; running whatever is ready turns 1F1B into GPipe
and overruns memory. So the list is a priority order: the first ready entry within the look-ahead runs, if it
overtakes nothing that it depends on and stays within the bound on alive micro-batches. Lists that run in strict order
cannot get stuck under this rule either: the entry that strict order would run next is always among the runnable ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pipesvc.core.actions import Action, ActionKind

# Entries from the head of the list that are looked at. Enough to reach the other stages of a worker that holds several.
LOOK_AHEAD: Final = 8


def choose(
    pending: Sequence[Action],
    is_ready: Callable[[Action], bool],
    live: Mapping[int, int],
    bounds: Mapping[int, int],
    look_ahead: int = LOOK_AHEAD,
) -> int | None:
    """The index in `pending` of the action to run now, or None when all that may run waits for something.

    `is_ready` says whether the data from elsewhere is there (it is asked only for entries that may run otherwise);
    what an action needs of its own stage is checked here: entries of one kind keep their order, a backward comes
    after its forward, norm, decision and update after all before them, and nothing of a stage passes its update, so
    the list may go on with the next step. `live` and `bounds` count micro-batches per stage; a stage without a bound
    is not bounded.
    """
    earlier: dict[int, list[Action]] = {}
    for index, action in enumerate(pending[:look_ahead]):
        before = earlier.setdefault(action.stage, [])
        is_bounded = (
            action.kind is ActionKind.FORWARD
            and action.stage in bounds
            and live.get(action.stage, 0) >= bounds[action.stage]
        )
        if not is_bounded and not any(_must_follow(action, other) for other in before) and is_ready(action):
            return index
        before.append(action)
    return None


def _must_follow(action: Action, other: Action) -> bool:
    """Whether `action` may not overtake `other`, an earlier entry of the same stage."""
    if action.kind is other.kind or other.kind is ActionKind.UPDATE:
        return True
    if action.kind is ActionKind.BACKWARD:
        return other.kind is not ActionKind.FORWARD or other.micro_batch == action.micro_batch
    return action.kind is not ActionKind.FORWARD
