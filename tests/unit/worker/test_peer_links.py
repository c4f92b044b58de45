"""A link between two children of one host, at both of its ends: order, credit, memory, and an end that is gone."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire import tree
from pipesvc.wire.elements import payload_bytes
from pipesvc.wire.links import Link
from pipesvc.worker.local_socket import ChildEnd, receive_now, socket_pair
from pipesvc.worker.parcels import ParcelArrived
from pipesvc.worker.port import Port

LINK = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)
BACK = Link(1, 0, types_pb2.LINK_KIND_GRADIENT)
WINDOW = 3
INT8 = types_pb2.CODEC_INT8


@dataclass
class Child:
    """A port, and the end of its socket that an agent has."""

    port: Port
    agent: socket.socket

    def hand_over(self, link: Link, sock: socket.socket, *, is_sender: bool) -> None:
        found = local_pb2.PeerLink(link=link.to_message(), is_sender=is_sender, window_parcels=WINDOW)
        self.tell(local_pb2.ToChild(peer_link=found), sock)

    def tell(self, message: local_pb2.ToChild, *socks: socket.socket) -> None:
        ChildEnd(self.agent).send(message.SerializeToString(), [each.fileno() for each in socks])

    def heard(self) -> list[local_pb2.FromChild]:
        """What the child has said to its agent."""
        found = []
        while True:
            try:
                found.append(local_pb2.FromChild.FromString(receive_now(self.agent).message))
            except BlockingIOError:
                return found

    def parcels(self) -> list[ParcelArrived]:
        return [event for event in self.port.poll(0.0) if isinstance(event, ParcelArrived)]


@pytest.fixture
def children() -> Iterator[tuple[Child, Child]]:
    made = []
    for _ in range(2):
        agent, own = socket_pair()
        made.append(Child(Port(ChildEnd(own)), agent))
    yield made[0], made[1]
    for child in made:
        child.port.close()
        child.agent.close()


def join(sender: Child, receiver: Child, link: Link = LINK) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        sender.hand_over(link, one, is_sender=True)
        receiver.hand_over(link, other, is_sender=False)
    sender.port.poll(0.0)
    receiver.port.poll(0.0)


def send(child: Child, micro_batch: int, value: Any, link: Link = LINK) -> None:
    child.port.send_parcel(link, 1, micro_batch, value)


def counted(child: Child) -> local_pb2.PeerCount:
    child.port.report_counts()
    [count] = [each.peer_counts for each in child.heard() if each.HasField("peer_counts")][-1].counts
    return count


VALUES = [
    torch.arange(6.0).reshape(2, 3),
    {"large": torch.randn(300, 400, generator=torch.Generator().manual_seed(0)), "mask": torch.tensor([True])},
    (torch.empty(0, 3), torch.tensor(2.5), None, "text", [torch.ones(2, dtype=torch.bfloat16)]),
    {"nothing": None},
    torch.arange(2000.0).reshape(40, 50).t(),
]


def is_equal(one: Any, other: Any) -> bool:
    first, leaves = tree.flatten(one, lambda leaf: isinstance(leaf, Tensor))
    second, others = tree.flatten(other, lambda leaf: isinstance(leaf, Tensor))
    pairs = list(zip(leaves, others, strict=True))
    return first == second and all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)


@pytest.mark.parametrize("value", VALUES, ids=["rows", "large", "mixed", "no tensor", "strided"])
def test_any_parcel_arrives_as_it_was_and_no_agent_hears_of_it(children: tuple[Child, Child], value: Any) -> None:
    one, other = children
    join(one, other)
    send(one, 4, value)
    [arrived] = other.parcels()
    assert (arrived.link, arrived.step, arrived.micro_batch) == (LINK, 1, 4)
    assert is_equal(arrived.value(), value)
    said = [each.WhichOneof("message") for each in (*one.heard(), *other.heard())]
    assert set(said) <= {"peer_counts"}


def test_parcels_that_went_by_the_agent_come_first(children: tuple[Child, Child]) -> None:
    """The socket is faster than the way through two agents."""
    one, other = children
    send(one, 0, torch.zeros(1))
    join(one, other)
    send(one, 1, torch.ones(1))
    assert other.parcels() == []
    [by_agent] = [each.tensor for each in one.heard() if each.HasField("tensor")]
    other.tell(local_pb2.ToChild(tensor=by_agent))
    assert [each.micro_batch for each in other.parcels()] == [0, 1]
    for _ in range(2):
        other.port.consumed(LINK)
    told = [each.parcels_consumed.num_parcels for each in other.heard() if each.HasField("parcels_consumed")]
    assert told == [1]


def test_f10_credit_holds_the_sender_back_and_opens_again(children: tuple[Child, Child]) -> None:
    one, other = children
    join(one, other)
    for number in range(3 * WINDOW):
        send(one, number, torch.full((2,), float(number)))
    seen = other.parcels()
    assert [each.micro_batch for each in seen] == list(range(WINDOW))
    for taken in range(1, 2 * WINDOW + 1):
        other.port.consumed(LINK)
        one.port.poll(0.0)
        seen += other.parcels()
        assert len(seen) == WINDOW + taken
    assert [each.leaves[0].tolist() for each in seen if each.leaves[0] is not None] == [
        [float(number)] * 2 for number in range(3 * WINDOW)
    ]


def test_memory_is_used_again_when_its_tensors_are_gone(children: tuple[Child, Child]) -> None:
    one, other = children
    join(one, other)
    value, places = torch.ones(100_000), set()
    for number in range(20):
        send(one, number, value * number)
        [arrived] = other.parcels()
        tensor = arrived.leaves[0]
        assert tensor is not None
        assert tensor[0] == number
        places.add(tensor.data_ptr())
        del arrived, tensor
        gc.collect()
        other.port.consumed(LINK)
        other.port.poll(0.0)
        one.port.poll(0.0)
    assert len(places) == 1


def test_a_tensor_that_is_kept_is_not_overwritten(children: tuple[Child, Child]) -> None:
    one, other = children
    join(one, other)
    kept = []
    for number in range(WINDOW):
        send(one, number, torch.full((10_000,), float(number)))
        kept += other.parcels()
    assert [each.leaves[0][0].item() for each in kept if each.leaves[0] is not None] == [0.0, 1.0, 2.0]


def test_two_that_send_to_each_other_without_reading_do_not_stop(children: tuple[Child, Child]) -> None:
    """More than both sockets hold: what the kernel does not take waits."""
    one, other = children
    join(one, other)
    join(other, one, BACK)
    value = [torch.ones(3_000) for _ in range(700)]  # 8 MB in messages of 12 kB
    for number in range(WINDOW):
        send(one, number, value)
        send(other, number, value, BACK)
    seen: list[list[ParcelArrived]] = [[], []]
    for _ in range(10_000):
        for child, found in zip((other, one), seen, strict=True):
            found += child.parcels()
    assert [len(found) for found in seen] == [WINDOW, WINDOW]
    assert all(torch.equal(each.leaves[699], value[0]) for found in seen for each in found)  # type: ignore[arg-type]


def test_who_is_gone_neither_stops_nor_wakes_the_other(children: tuple[Child, Child]) -> None:
    one, other = children
    join(one, other)
    other.port.close()
    send(one, 0, torch.ones(1))
    assert one.port.poll(0.05) == []
    send(one, 1, torch.ones(1))
    one.tell(local_pb2.ToChild(stop=local_pb2.Stop(reason="over")))
    [event] = one.port.poll(5.0)
    assert isinstance(event, local_pb2.ToChild)
    agent, own = socket_pair()
    children[1].agent.close()
    children[1].port, children[1].agent = Port(ChildEnd(own)), agent


def test_what_was_carried_is_counted(children: tuple[Child, Child]) -> None:
    one, other = children
    join(one, other)
    send(one, 0, [torch.ones(5), torch.ones(50_000)])
    send(one, 1, torch.ones(5))
    count = counted(one)
    assert (Link.from_message(count.link), count.tensor_bytes, count.num_tensors) == (LINK, 200_040, 3)


@pytest.mark.parametrize("num", [1_000, 50_000])
def test_a_coded_parcel_decodes_within_its_bound_and_is_counted(children: tuple[Child, Child], num: int) -> None:
    """In the message, and in memory, which comes back at once. What the codec does not take arrives as it was."""
    one, other = children
    join(one, other)
    exact = torch.randn(num, generator=torch.Generator().manual_seed(0))
    ids, coded_bytes = torch.arange(5), payload_bytes(INT8, types_pb2.ELEMENT_TYPE_FLOAT32, (num,))
    for number in range(WINDOW):
        one.port.send_parcel(LINK, 1, number, {"x": exact, "ids": ids}, INT8)
    for arrived in other.parcels():
        found = arrived.value()
        assert torch.equal(found["ids"], ids)
        error = (found["x"] - exact).abs()
        assert 0.0 < error.max() <= exact.abs().max() / 254 * 1.001
    count = counted(one)
    assert (count.tensor_bytes, count.coded_bytes) == (WINDOW * (4 * num + 40), WINDOW * (coded_bytes + 40))
    assert count.num_tensors == 2 * WINDOW
    norm = torch.linalg.vector_norm
    assert count.relative_error == pytest.approx(float(norm(error) / norm(exact)))


def test_gradients_that_a_codec_cannot_hold_are_counted_as_they_are(children: tuple[Child, Child]) -> None:
    one, other = children
    join(one, other, BACK)
    exact = torch.full((300,), float("inf"))
    one.port.send_gradients(BACK, 1, 0, [exact, None], INT8)
    [arrived] = other.parcels()
    found, nothing = arrived.leaves
    assert nothing is None
    assert found is not None
    assert torch.equal(found, exact)
    count = counted(one)
    assert (count.tensor_bytes, count.coded_bytes, count.relative_error) == (1200, 1200, 0.0)


def test_there_is_room_for_more_when_the_receiver_has_taken_what_was_sent(
    children: tuple[Child, Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By parcels taken, not by memory given back: who keeps its tensors keeps nobody waiting. And `poll` tells."""
    monkeypatch.setattr("pipesvc.wire.ahead.AHEAD_BYTES", 100_000)
    one, other = children
    join(one, other)
    kept = []
    for number in range(2):
        assert one.port.has_room(LINK)
        send(one, number, torch.ones(20_000))
        kept += other.parcels()
    assert not one.port.has_room(LINK)
    assert one.port.has_room(BACK)
    assert not one.port.has_room(LINK)
    assert one.port.poll(0.01) == []
    other.port.consumed(LINK)
    started_s = time.monotonic()
    assert one.port.poll(30.0) == []
    assert time.monotonic() - started_s < 15.0
    assert one.port.has_room(LINK)
    send(one, 2, torch.ones(20_000))
    assert not one.port.has_room(LINK)
    other.port.close()
    one.port.poll(0.01)
    assert one.port.has_room(LINK)  # a receiver that is gone takes nothing any more
    agent, own = socket_pair()
    other.agent.close()
    other.port, other.agent = Port(ChildEnd(own)), agent
