"""Which links an action reads and which it feeds: pure, so that the interpreter, the waiting texts and the tests agree.

Stage s reads its input from stage s - 1 (stage 0: from the feeder), its output's gradient from stage s + 1, labels
straight from the feeder on the last stage. With clipping, every stage sends its norms to stage 0 and stage 0 answers
every stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesvc.core.actions import Action, ActionKind
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.links import FEEDER, Link, endpoint_name


def input_link(stage: int) -> Link:
    if stage == 0:
        return Link(FEEDER, 0, types_pb2.LINK_KIND_INPUT)
    return Link(stage - 1, stage, types_pb2.LINK_KIND_ACTIVATION)


def label_link(num_stages: int) -> Link:
    return Link(FEEDER, num_stages - 1, types_pb2.LINK_KIND_LABEL)


def gradient_link(stage: int) -> Link:
    """Carries the gradient of this stage's output, from the stage after it."""
    return Link(stage + 1, stage, types_pb2.LINK_KIND_GRADIENT)


def norm_link(stage: int) -> Link:
    return Link(stage, 0, types_pb2.LINK_KIND_NORM)


def decision_link(stage: int) -> Link:
    return Link(0, stage, types_pb2.LINK_KIND_DECISION)


@dataclass(frozen=True, kw_only=True, slots=True)
class Routes:
    """The links of one run."""

    num_stages: int
    has_labels: bool
    clips: bool

    def read_by(self, action: Action) -> tuple[Link, ...]:
        """Every link of which this action needs one parcel."""
        stage = action.stage
        is_last = stage == self.num_stages - 1
        match action.kind:
            case ActionKind.FORWARD if is_last and self.has_labels:
                return (input_link(stage), label_link(self.num_stages))
            case ActionKind.FORWARD:
                return (input_link(stage),)
            case ActionKind.BACKWARD | ActionKind.INPUT_BACKWARD:
                return () if is_last else (gradient_link(stage),)
            case ActionKind.DECIDE:
                return tuple(norm_link(other) for other in range(self.num_stages))
            case ActionKind.UPDATE:
                return (decision_link(stage),) if self.clips else ()
            case _:
                return ()


def waiting_text(action: Action, missing: Link, step: int) -> str:
    """What is awaited and from whom, for progress reports and traces."""
    what = str(missing).partition("/")[2]
    micro_batch = "" if action.micro_batch is None else f", micro-batch {action.micro_batch}"
    producer = endpoint_name(missing.producer)
    whom = producer if missing.producer < 0 else f"stage {producer}"
    return f"{what} of step {step}{micro_batch} from {whom}"
