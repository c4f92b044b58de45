"""The actions of a step, as values with a text form.

A schedule that is a loop can only be run; one that is a list of values can also be checked, simulated, drawn, logged
and compared with what really happened. The same short text (`0F3`, `2B1`, `1U`) goes into logs, traces, golden files
and errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from pipesvc.errors import ErrorCode, PipesvcError


class ActionKind(StrEnum):
    """What a stage does. The letter is the text form."""

    FORWARD = "F"
    BACKWARD = "B"  # the gradients of inputs and weights at once
    INPUT_BACKWARD = "I"  # those of the inputs alone, which the stage before waits for
    WEIGHT_BACKWARD = "W"  # those of the weights alone, after the I of the same micro-batch
    NORM = "N"  # report this stage's gradient norms, and whether they are finite, to stage 0
    DECIDE = "D"  # stage 0 combines the reports and tells every stage what to do
    UPDATE = "U"  # run the optimizer of this stage


# How traces and progress write a forward without a backward, which is no action of a step.
EVALUATING: Final = "E"

PER_MICRO_BATCH: Final = frozenset(
    {ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.INPUT_BACKWARD, ActionKind.WEIGHT_BACKWARD}
)

_TEXT: Final = re.compile(r"(0|[1-9][0-9]{0,8})(?:([FBIW])(0|[1-9][0-9]{0,8})|([NDU]))")


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


def input_backward(stage: int, micro_batch: int) -> Action:
    return Action(stage, ActionKind.INPUT_BACKWARD, micro_batch)


def weight_backward(stage: int, micro_batch: int) -> Action:
    return Action(stage, ActionKind.WEIGHT_BACKWARD, micro_batch)


def parse(text: str) -> Action:
    """The action that this text stands for; anything that `str(action)` does not write is refused."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"{text!r} is not an action",
            advice="Write STAGE, then F, B, I or W with a micro-batch (0F3, 2B1), or N, D or U alone (1U).",
        )
    stage, kind, micro_batch, once = match.groups()
    if once is not None:
        return Action(int(stage), ActionKind(once))
    return Action(int(stage), ActionKind(kind), int(micro_batch))


class ResultKind(StrEnum):
    """What an action leaves for others."""

    OUTPUT = "output"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"
    NORM = "norm"
    SCALE = "scale"


class Result(NamedTuple):
    """One thing that an action gives; `micro_batch` is None for what is there once a step."""

    stage: int
    kind: ResultKind
    micro_batch: int | None = None


def results(action: Action) -> tuple[Result, ...]:
    """What this action gives. A whole backward gives both gradients."""
    stage, micro_batch = action.stage, action.micro_batch
    return tuple(Result(stage, kind, micro_batch) for kind in _RESULTS[action.kind])


_RESULTS: Final[dict[ActionKind, tuple[ResultKind, ...]]] = {
    ActionKind.FORWARD: (ResultKind.OUTPUT,),
    ActionKind.BACKWARD: (ResultKind.INPUT_GRADIENT, ResultKind.WEIGHT_GRADIENT),
    ActionKind.INPUT_BACKWARD: (ResultKind.INPUT_GRADIENT,),
    ActionKind.WEIGHT_BACKWARD: (ResultKind.WEIGHT_GRADIENT,),
    ActionKind.NORM: (ResultKind.NORM,),
    ActionKind.DECIDE: (ResultKind.SCALE,),
    ActionKind.UPDATE: (),
}


def needs(action: Action, *, num_stages: int, num_micro_batches: int, decides: bool) -> tuple[Result, ...]:
    """The results that this action needs, of this stage and others. Data from the feeder is not listed."""
    stage, micro_batch = action.stage, action.micro_batch
    match action.kind:
        case ActionKind.FORWARD:
            return (Result(stage - 1, ResultKind.OUTPUT, micro_batch),) if stage else ()
        case ActionKind.BACKWARD | ActionKind.INPUT_BACKWARD:
            own = Result(stage, ResultKind.OUTPUT, micro_batch)
            if stage + 1 == num_stages:
                return (own,)
            return own, Result(stage + 1, ResultKind.INPUT_GRADIENT, micro_batch)
        case ActionKind.WEIGHT_BACKWARD:
            return (Result(stage, ResultKind.INPUT_GRADIENT, micro_batch),)
        case ActionKind.DECIDE:
            return tuple(Result(other, ResultKind.NORM) for other in range(num_stages))
        case ActionKind.UPDATE if decides:
            return (Result(0, ResultKind.SCALE),)
        case _:
            return tuple(Result(stage, ResultKind.WEIGHT_GRADIENT, index) for index in range(num_micro_batches))
