"""Which kinds of action may not overtake which on one stage: the rule of `choice.choose` as a table.

`choose` looks at actions one by one, which is right for an executor that runs a hundred a second and too slow for a
simulator. The table is made by asking `choose` itself, so the rule is still written in one place only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from pipesvc.core.actions import PER_MICRO_BATCH, Action, ActionKind
from pipesvc.core.choice import choose


class Followed(NamedTuple):
    """The kinds that an action may not overtake on its own stage. Its own kind is always among the first."""

    always: tuple[ActionKind, ...]
    in_same_micro_batch: tuple[ActionKind, ...]


@lru_cache(maxsize=1)
def followed() -> Mapping[ActionKind, Followed]:
    """For each kind of action, what it follows."""
    return {kind: _followed_by(kind) for kind in ActionKind}


def _followed_by(kind: ActionKind) -> Followed:
    always, in_same = [], []
    for other in ActionKind:
        match [_must_follow(any_action(0, kind, 1), any_action(0, other, index)) for index in (0, 1, 2)]:
            case [True, True, True]:
                always.append(other)
            case [False, True, False]:
                in_same.append(other)
            case [False, False, False]:
                pass
            case answers:
                raise AssertionError(f"whether {kind.name} follows {other.name} is {answers}: no rule of this table")
    return Followed(tuple(always), tuple(in_same))


def _must_follow(action: Action, other: Action) -> bool:
    return choose([other, action], lambda each: each is action, {}, {}) is None


def any_action(stage: int, kind: ActionKind, micro_batch: int = 0) -> Action:
    """One of this kind; what happens once a step has no micro-batch."""
    return Action(stage, kind, micro_batch if kind in PER_MICRO_BATCH else None)
