"""The child's end: parcels without copies, segments given back when the last tensor is gone."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.local_socket import ChildEnd, socket_pair
from pipesvc.worker.parcels import INLINE_PAYLOAD_BYTES
from pipesvc.worker.port import ParcelArrived, Port

LINK = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)
LARGE = INLINE_PAYLOAD_BYTES  # float32 elements: four times the limit


class Peer:
    """The other end of the socket, in the same thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.end = ChildEnd(sock)

    def take(self) -> tuple[local_pb2.FromChild, tuple[int, ...]]:
        packet = self.end.receive(5.0)
        assert packet is not None
        return local_pb2.FromChild.FromString(packet.message), packet.descriptors

    def take_all(self) -> list[local_pb2.FromChild]:
        found = []
        while (packet := self.end.receive(0.0)) is not None:
            found.append(local_pb2.FromChild.FromString(packet.message))
        return found

    def turn_back(self, num_tensors: int) -> list[local_pb2.LocalTensor]:
        """Hand the child's own tensors back to it, as if another worker had sent them."""
        turned = []
        for _ in range(num_tensors):
            message, descriptors = self.take()
            self.tell(local_pb2.ToChild(tensor=message.tensor), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            turned.append(message.tensor)
        return turned

    def tell(self, message: local_pb2.ToChild, descriptors: tuple[int, ...] = ()) -> None:
        self.end.send(message.SerializeToString(), descriptors)


@pytest.fixture
def pair() -> Iterator[tuple[Port, Peer]]:
    agent_sock, child_sock = socket_pair()
    port, peer = Port(ChildEnd(child_sock)), Peer(agent_sock)
    yield port, peer
    port.close()
    peer.end.close()


def _one_parcel(port: Port) -> ParcelArrived:
    (parcel,) = port.poll(5.0)
    assert isinstance(parcel, ParcelArrived)
    return parcel


def test_a_tree_of_tensors_arrives_equal_with_its_flags(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    small = torch.randn(3, 2, requires_grad=True)
    large = torch.arange(LARGE, dtype=torch.int64)
    strided = torch.randn(200, 300).t()
    value: Any = (small, {"large": large, "more": [strided, None, 3, "text"]})

    port.send_parcel(LINK, 7, 2, value)
    peer.turn_back(3)
    parcel = _one_parcel(port)

    assert (parcel.link, parcel.step, parcel.micro_batch) == (LINK, 7, 2)
    assert parcel.requires_grad == (True, False, False)
    received_small, rest = parcel.value()
    assert torch.equal(received_small, small)
    assert not received_small.requires_grad
    assert torch.equal(rest["large"], large)
    assert torch.equal(rest["more"][0], strided)
    assert rest["more"][1:] == [None, 3, "text"]


@pytest.mark.parametrize("value", [{}, (), None, [1, 2.5]])
def test_a_parcel_without_tensors_arrives(pair: tuple[Port, Peer], value: object) -> None:
    port, peer = pair
    port.send_parcel(LINK, 1, 0, value)
    peer.turn_back(1)

    parcel = _one_parcel(port)

    assert parcel.leaves == ()
    assert parcel.value() == value


def test_gradients_keep_their_places(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    port.send_gradients(LINK, 1, 0, [None, torch.ones(2), None])
    peer.turn_back(3)

    parcel = _one_parcel(port)

    assert parcel.leaves[0] is None
    assert parcel.leaves[2] is None
    assert torch.equal(parcel.leaves[1], torch.ones(2))  # type: ignore[arg-type]


def test_a_parcel_of_no_gradient_at_all_arrives(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    port.send_gradients(LINK, 1, 0, [None])
    peer.turn_back(1)
    assert _one_parcel(port).leaves == (None,)


def test_small_tensors_need_no_segment(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    port.send_parcel(LINK, 1, 0, torch.ones(INLINE_PAYLOAD_BYTES // 4))
    (tensor,) = peer.turn_back(1)
    assert tensor.segment_id == 0
    assert len(tensor.inline_payload) == INLINE_PAYLOAD_BYTES
    assert torch.equal(_one_parcel(port).value(), torch.ones(INLINE_PAYLOAD_BYTES // 4))


def test_a_segment_goes_back_only_when_the_last_tensor_over_it_is_gone(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    port.send_parcel(LINK, 1, 0, torch.ones(LARGE))
    peer.turn_back(1)
    kept = _one_parcel(port).value()[5:10]
    gc.collect()
    port.poll(0.0)
    assert peer.take_all() == []

    del kept
    port.poll(0.0)

    (message,) = peer.take_all()
    assert message.release_segment.segment_id == 1


def test_a_released_segment_is_used_again_without_a_descriptor(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    port.send_parcel(LINK, 1, 0, torch.ones(LARGE))
    first, descriptors = peer.take()
    assert len(descriptors) == 1
    os.close(descriptors[0])
    peer.tell(local_pb2.ToChild(release_segment=local_pb2.ReleaseSegment(segment_id=first.tensor.segment_id)))
    assert port.poll(0.01) == []

    port.send_parcel(LINK, 1, 1, torch.zeros(LARGE))

    second, no_descriptors = peer.take()
    assert second.tensor.segment_id == first.tensor.segment_id
    assert no_descriptors == ()
    assert second.tensor.new_segment_bytes == 0


def test_what_was_sent_may_be_changed_at_once(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    tensor = torch.ones(LARGE)
    port.send_parcel(LINK, 1, 0, tensor)
    tensor.zero_()
    peer.turn_back(1)
    assert _one_parcel(port).value().sum().item() == LARGE


def test_commands_and_parcels_come_in_order(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    peer.tell(local_pb2.ToChild(issue_step=local_pb2.IssueStep(step=1)))
    port.send_parcel(LINK, 1, 0, torch.ones(1))
    peer.turn_back(1)
    peer.tell(local_pb2.ToChild(stop=local_pb2.Stop(reason="done")))

    first, second, third = port.poll(5.0)

    assert isinstance(first, local_pb2.ToChild)
    assert first.issue_step.step == 1
    assert isinstance(second, ParcelArrived)
    assert isinstance(third, local_pb2.ToChild)
    assert third.stop.reason == "done"


def test_links_do_not_mix(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    other = Link(2, 1, types_pb2.LINK_KIND_GRADIENT)
    port.send_parcel(LINK, 1, 0, (torch.ones(1), torch.ones(1)))
    port.send_parcel(other, 1, 0, torch.zeros(1))
    first, second, third = (peer.take()[0].tensor for _ in range(3))
    for tensor in (first, third, second):  # the other link's parcel arrives in the middle
        peer.tell(local_pb2.ToChild(tensor=tensor))

    events = port.poll(5.0)

    assert [event.link for event in events if isinstance(event, ParcelArrived)] == [other, LINK]


def test_consumed_counts_are_absolute_per_link(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    other = Link(1, 0, types_pb2.LINK_KIND_GRADIENT)
    for link in (LINK, LINK, other, LINK):
        port.consumed(link)
    counts = [message.parcels_consumed for message in peer.take_all()]
    assert [(Link.from_message(each.link), each.num_parcels) for each in counts] == [
        (LINK, 1),
        (LINK, 2),
        (other, 1),
        (LINK, 3),
    ]


def test_without_its_agent_a_child_ends(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    peer.end.close()
    with pytest.raises(SystemExit):
        port.poll(None)
    with pytest.raises(SystemExit):
        port.report(local_pb2.FromChild(ready=local_pb2.Ready()))


def test_there_is_room_for_more_when_the_agent_has_given_memory_back(
    pair: tuple[Port, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipesvc.wire.ahead.AHEAD_BYTES", 4 * LARGE)
    port, peer = pair
    other = Link(0, 2, types_pb2.LINK_KIND_ACTIVATION)
    assert port.has_room(LINK)
    port.send_parcel(LINK, 1, 0, torch.ones(LARGE))
    assert not port.has_room(LINK)
    assert port.has_room(other)
    assert not port.has_room(LINK)
    assert port.poll(0.01) == []
    message, descriptors = peer.take()
    for descriptor in descriptors:
        os.close(descriptor)
    release = local_pb2.ReleaseSegment(segment_id=message.tensor.segment_id)
    peer.tell(local_pb2.ToChild(release_segment=release))
    started_s = time.monotonic()
    assert port.poll(30.0) == []
    assert time.monotonic() - started_s < 15.0
    assert port.has_room(LINK)
