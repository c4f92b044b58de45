"""Which pending action runs next: the one rule that the executor and the simulator share.

Running a list strictly in order idles whenever one message is late; running whatever is ready turns 1F1B into GPipe
and overruns memory. So the list is a priority order: the first ready entry within the look-ahead runs, if it
overtakes nothing that it depends on and stays within the bound on alive micro-batches. Lists that run in strict order
cannot get stuck under this rule either: the entry that strict order would run next is always among the runnable ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pipesvc.core.actions import PER_MICRO_BATCH, Action, ActionKind

# Entries from the head of the list that are looked at. Enough to reach the other stages of a worker that holds several.
LOOK_AHEAD: Final = 8

# The kinds of its stage that an action never overtakes, whatever their micro-batch: results of one kind keep their
# order, nothing passes an update, and what happens once a step comes after all before it.
_NEVER_OVERTAKES: Final[dict[ActionKind, frozenset[ActionKind]]] = {
    ActionKind.FORWARD: frozenset({ActionKind.FORWARD, ActionKind.UPDATE}),
    ActionKind.BACKWARD: frozenset(set(ActionKind) - {ActionKind.FORWARD}),
    ActionKind.INPUT_BACKWARD: frozenset(set(ActionKind) - {ActionKind.FORWARD, ActionKind.WEIGHT_BACKWARD}),
    ActionKind.WEIGHT_BACKWARD: frozenset(set(ActionKind) - {ActionKind.FORWARD, ActionKind.INPUT_BACKWARD}),
    **dict.fromkeys(set(ActionKind) - PER_MICRO_BATCH, frozenset(ActionKind)),
}


def choose(
    pending: Sequence[Action],
    is_ready: Callable[[Action], bool],
    live: Mapping[int, int],
    bounds: Mapping[int, int],
    look_ahead: int = LOOK_AHEAD,
) -> int | None:
    """The index in `pending` of the action to run now, or None when all that may run waits for something.

    `is_ready` says whether the data from elsewhere is there (it is asked only for entries that may run otherwise);
    what an action needs of its own stage is checked here: an entry overtakes none that gives the same kind of result
    or belongs to the same micro-batch, norm, decision and update come after all before them, and nothing of a stage
    passes its update, so the list may go on with the next step. `live` and `bounds` count micro-batches per stage; a
    stage without a bound is not bounded.
    """
    passed: list[Action] = []
    for index in range(min(look_ahead, len(pending))):
        action = pending[index]
        if (
            _has_room(action, live, bounds)
            and not (passed and any(_must_follow(action, other) for other in passed))
            and is_ready(action)
        ):
            return index
        passed.append(action)
    return None


def _has_room(action: Action, live: Mapping[int, int], bounds: Mapping[int, int]) -> bool:
    if action.kind is not ActionKind.FORWARD:
        return True
    bound = bounds.get(action.stage)
    return bound is None or live.get(action.stage, 0) < bound


def _must_follow(action: Action, other: Action) -> bool:
    """Whether `action` may not overtake `other`, an earlier entry."""
    return action.stage == other.stage and (
        other.kind in _NEVER_OVERTAKES[action.kind] or other.micro_batch == action.micro_batch
    )
