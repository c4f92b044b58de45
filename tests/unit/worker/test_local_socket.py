"""Messages and descriptors between an agent and a child: whole, in order, and nothing left open."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from pipesvc.worker.local_socket import INLINE_BYTES, AgentEnd, ChildEnd, Packet, PeerGoneError, socket_pair


class Agent:
    """Collects what the agent's end receives."""

    def __init__(self) -> None:
        sock, child_sock = socket_pair()
        self.child = ChildEnd(child_sock)
        self.packets: list[Packet] = []
        self.is_child_gone = False
        self.end = AgentEnd(sock, on_packet=self.packets.append, on_gone=self._gone)

    def _gone(self) -> None:
        self.is_child_gone = True

    async def until_received(self, num_packets: int) -> None:
        async with asyncio.timeout(10):
            while len(self.packets) < num_packets:
                await asyncio.sleep(0)

    def close(self) -> None:
        self.end.close()
        self.child.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1, INLINE_BYTES, INLINE_BYTES + 1, 3_000_000])
async def test_messages_of_any_size_arrive_whole_both_ways(size: int) -> None:
    agent = Agent()
    message = os.urandom(size)

    agent.child.send(message)
    await agent.until_received(1)
    agent.end.send(message)

    assert agent.packets == [Packet(message=message, descriptors=())]
    assert agent.child.receive(10.0) == Packet(message=message, descriptors=())
    agent.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [10, INLINE_BYTES * 2])
async def test_a_descriptor_arrives_beside_its_message_and_belongs_to_the_receiver(size: int) -> None:
    agent = Agent()
    memory = os.memfd_create("test")
    os.write(memory, b"shared")

    agent.end.send(b"x" * size, (memory,))
    os.close(memory)  # the packet holds a duplicate
    packet = agent.child.receive(10.0)

    assert packet is not None
    (received,) = packet.descriptors
    assert os.pread(received, 100, 0) == b"shared"
    assert not os.get_inheritable(received)
    os.close(received)
    agent.close()


@pytest.mark.asyncio
async def test_the_agent_never_blocks_on_a_child_that_does_not_read() -> None:
    agent = Agent()
    messages = [str(number).encode() * 1000 for number in range(5_000)]

    for message in messages:
        agent.end.send(message)
    received: list[bytes] = []
    async with asyncio.timeout(30):
        while len(received) < len(messages):
            packet = agent.child.receive(0.0)
            if packet is None:
                await asyncio.sleep(0)
            else:
                received.append(packet.message)

    assert received == messages
    agent.close()


@pytest.mark.asyncio
async def test_descriptors_of_unsent_messages_are_closed_with_the_socket() -> None:
    agent = Agent()
    memory = os.memfd_create("test")
    for _ in range(200):
        agent.end.send(b"x" * INLINE_BYTES, (memory,))
    os.close(memory)
    agent.close()  # the fixture around every test counts what is open


def test_receive_gives_up_at_its_limit() -> None:
    agent_sock, child_sock = socket_pair()
    child = ChildEnd(child_sock)
    begin = time.monotonic()

    assert child.receive(0.05) is None

    assert time.monotonic() - begin >= 0.05
    child.close()
    agent_sock.close()


def test_a_child_whose_agent_is_gone_is_told_so() -> None:
    agent_sock, child_sock = socket_pair()
    child = ChildEnd(child_sock)
    agent_sock.close()

    with pytest.raises(PeerGoneError):
        child.receive(None)
    with pytest.raises(PeerGoneError):
        child.send(b"x")
    child.close()


@pytest.mark.asyncio
async def test_the_last_words_of_a_child_are_taken_in_before_its_end() -> None:
    agent = Agent()
    agent.end.pause_reading()
    agent.child.send(b"first")
    agent.child.send(b"last")
    agent.child.close()

    agent.end.drain()

    assert [packet.message for packet in agent.packets] == [b"first", b"last"]
    assert agent.is_child_gone
    agent.end.send(b"to nobody")
    agent.close()


@pytest.mark.asyncio
async def test_nothing_is_read_while_paused() -> None:
    agent = Agent()
    agent.end.pause_reading()
    agent.child.send(b"x")
    for _ in range(20):
        await asyncio.sleep(0)
    assert agent.packets == []

    agent.end.resume_reading()
    await agent.until_received(1)

    assert agent.packets[0].message == b"x"
    agent.close()
