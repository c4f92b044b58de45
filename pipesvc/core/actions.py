"""The actions of a step, as values with a text form.

A schedule that is a loop can only be run; one that is a list of values can also be checked, simulated, drawn, logged
and compared with what really happened. The same short text (`0F3`, `2B1`, `1U`) goes into logs, traces, golden files
and errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError


class ActionKind(StrEnum):
    """What a stage does. The letter is the text form."""

    FORWARD = "F"
    BACKWARD = "B"
    NORM = "N"  # send this stage's gradient norms to stage 0
    DECIDE = "D"  # stage 0 combines the norms and tells every stage the scale
    UPDATE = "U"  # run the optimizer of this stage


PER_MICRO_BATCH: Final = frozenset({ActionKind.FORWARD, ActionKind.BACKWARD})

_TEXT: Final = re.compile(r"(0|[1-9][0-9]{0,8})(?:([FB])(0|[1-9][0-9]{0,8})|([NDU]))")


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One thing that one stage does in a step; `micro_batch` is None for what happens once a step."""

    stage: int
    kind: ActionKind
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        if self.stage < 0:
            raise ValueError(f"a stage index is 0 or more, not {self.stage}")
        if (self.kind in PER_MICRO_BATCH) != (self.micro_batch is not None):
            need = "needs" if self.kind in PER_MICRO_BATCH else "has no"
            raise ValueError(f"an action of kind {self.kind.name} {need} micro-batch")
        if self.micro_batch is not None and self.micro_batch < 0:
            raise ValueError(f"a micro-batch index is 0 or more, not {self.micro_batch}")

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{'' if self.micro_batch is None else self.micro_batch}"


def forward(stage: int, micro_batch: int) -> Action:
    return Action(stage, ActionKind.FORWARD, micro_batch)


def backward(stage: int, micro_batch: int) -> Action:
    return Action(stage, ActionKind.BACKWARD, micro_batch)


def parse(text: str) -> Action:
    """The action that this text stands for; anything that `str(action)` does not write is refused."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"{text!r} is not an action",
            advice="Write STAGE, then F or B with a micro-batch (0F3, 2B1), or N, D or U alone (1U).",
        )
    stage, kind, micro_batch, once = match.groups()
    if once is not None:
        return Action(int(stage), ActionKind(once))
    return Action(int(stage), ActionKind(kind), int(micro_batch))


def awaited(action: Action, *, num_stages: int, num_micro_batches: int, clips: bool) -> tuple[Action, ...]:
    """The actions whose results this one needs, on this stage and others. Data from the feeder is not listed.

    Backwards run in ascending order, so the last one of a stage stands for all.
    """
    stage, last = action.stage, num_micro_batches - 1
    match action.kind, action.micro_batch:
        case ActionKind.FORWARD, int(micro_batch):
            return (forward(stage - 1, micro_batch),) if stage else ()
        case ActionKind.BACKWARD, int(micro_batch):
            own = forward(stage, micro_batch)
            return (own, backward(stage + 1, micro_batch)) if stage + 1 < num_stages else (own,)
        case ActionKind.NORM, _:
            return (backward(stage, last),)
        case ActionKind.DECIDE, _:
            return tuple(Action(other, ActionKind.NORM) for other in range(num_stages))
        case _:
            return (Action(0, ActionKind.DECIDE),) if clips else (backward(stage, last),)
