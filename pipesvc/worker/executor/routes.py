"""Which links an action reads: pure, so that the interpreter, the waiting texts and the tests agree.

Which stages exchange what, `core.edges` says; here that becomes links. A list of layers is a chain: stage s reads its
input from stage s - 1 (stage 0: from the feeder) and its output's gradient from stage s + 1. A module that is replayed
may have several of each. Labels come straight from the feeder to the last stage. Where stages decide together, every
stage reports to stage 0, which answers every stage. The owner of a parameter that several stages use sends its new
value.
"""

from __future__ import annotations

from pipesvc.core.actions import Action, ActionKind
from pipesvc.core.edges import Edges
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.links import FEEDER, Link, endpoint_name


def input_link(stage: int) -> Link:
    return Link(FEEDER, stage, types_pb2.LINK_KIND_INPUT)


def label_link(num_stages: int) -> Link:
    return Link(FEEDER, num_stages - 1, types_pb2.LINK_KIND_LABEL)


def activation_link(producer: int, consumer: int) -> Link:
    return Link(producer, consumer, types_pb2.LINK_KIND_ACTIVATION)


def gradient_link(sender: int, receiver: int) -> Link:
    return Link(sender, receiver, types_pb2.LINK_KIND_GRADIENT)


def norm_link(stage: int) -> Link:
    return Link(stage, 0, types_pb2.LINK_KIND_NORM)


def decision_link(stage: int) -> Link:
    return Link(0, stage, types_pb2.LINK_KIND_DECISION)


def weight_link(owner: int, holder: int) -> Link:
    return Link(owner, holder, types_pb2.LINK_KIND_WEIGHT)


def read_by(edges: Edges, action: Action) -> tuple[Link, ...]:
    """Every link of which this action needs one parcel."""
    stage = action.stage
    match action.kind:
        case ActionKind.FORWARD:
            inputs = [input_link(stage)] if stage in edges.input_readers else []
            labels = [label_link(edges.num_stages)] if stage in edges.label_readers else []
            return (*inputs, *(activation_link(maker, stage) for maker in edges.activations(stage)), *labels)
        case ActionKind.BACKWARD | ActionKind.INPUT_BACKWARD:
            return tuple(gradient_link(sender, stage) for sender in edges.gradient_senders(stage))
        case ActionKind.DECIDE:
            return tuple(norm_link(other) for other in range(edges.num_stages))
        case ActionKind.UPDATE:
            decisions = [decision_link(stage)] if edges.decides else []
            return (*decisions, *(weight_link(owner, stage) for owner in edges.weight_owners(stage)))
        case _:
            return ()


def crowded_text(link: Link) -> str:
    """What is awaited where a receiver has not taken what was sent."""
    return f"stage {link.consumer} to take what was sent on {link}"


def waiting_text(action: Action, missing: Link, step: str) -> str:
    """What is awaited and from whom, for progress reports and traces."""
    what = str(missing).partition("/")[2]
    micro_batch = "" if action.micro_batch is None else f", micro-batch {action.micro_batch}"
    producer = endpoint_name(missing.producer)
    whom = producer if missing.producer < 0 else f"stage {producer}"
    return f"{what} of {step}{micro_batch} from {whom}"
