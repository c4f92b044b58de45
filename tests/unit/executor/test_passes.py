"""Who is held up because a receiver does not take: first stages of passes of forwards, and never a step of training."""

from __future__ import annotations

from typing import cast

import pytest

from pipesvc.core import actions
from pipesvc.core.edges import Edges
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.executor import passes
from pipesvc.worker.executor.routes import activation_link
from pipesvc.worker.port_like import PortLike


class FullPort:
    """Nothing that it has sent is taken."""

    def has_room(self, link: Link) -> bool:
        return False


@pytest.mark.parametrize(
    ("kind", "num_stages_here", "is_held_up"),
    [
        (local_pb2.PASS_KIND_PREDICTION, 1, True),
        (local_pb2.PASS_KIND_EVALUATION, 1, True),
        (local_pb2.PASS_KIND_EVALUATION, 2, False),
        (local_pb2.PASS_KIND_UNSPECIFIED, 1, False),
    ],
)
def test_a_first_stage_of_forwards_alone_is_held_up(
    kind: local_pb2.PassKind, num_stages_here: int, is_held_up: bool
) -> None:
    issue = local_pb2.IssueStep(step=1, shares=[1.0], rows=[1], kind=kind)
    step = passes.begun(issue, schedule="1F1B", stages=(0,), num_stages=2, in_flight=0, decides=False, text="")
    port = cast(PortLike, FullPort())
    edges = Edges(
        num_stages=2, forwards=((0, 1),), backwards=((1, 0),), input_readers=(0,), label_readers=(1,), decides=False
    )
    found = passes.crowded(port, step, edges, actions.forward(0, 0), num_stages_here=num_stages_here)
    assert found == (activation_link(0, 1) if is_held_up else None)
