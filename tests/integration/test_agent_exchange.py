"""Tensors from a process through its agent, a link and another agent into another process, and gradients back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import options, servers
from pipesvc.net.addresses import Address
from pipesvc.net.link_service import LinkService
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from pipesvc.wire.frames import FrameHeader
from pipesvc.wire.links import Link
from pipesvc.worker.doors import Door
from pipesvc.worker.exchange import Exchange
from pipesvc.worker.local_socket import AgentEnd, Packet, socket_pair
from tests.integration.agent_port_child import BACKWARD, FORWARD, NUM_LARGE

EXECUTOR = types_pb2.ROLE_EXECUTOR
CHILD = Path(__file__).with_name("agent_port_child.py")
LARGE_BYTES = NUM_LARGE * 4


class HalfAgent:
    """The data side of an agent with one child, in this process."""

    def __init__(self, *, has_checksums: bool = True, child: Path = CHILD) -> None:
        self._child = child
        self._has_checksums = has_checksums
        self.service = LinkService()
        self._server = servers.make_server(token=None, server_options=options.DATA_SERVER)
        self.service.add_to(self._server)
        self.address = str(servers.bind(self._server, Address(host="127.0.0.1", port=0)).address)
        self.failures: list[PipesvcError] = []
        self.reported = asyncio.Event()
        self.exchange: Any = None
        self.num_checksums = 0  # of the tensors that came

    async def open(self, addresses: dict[int, str], arguments: list[str], *, has_door: bool = False) -> None:
        await self._server.start()
        self.door = Door() if has_door else None
        agent_end, child_end = socket_pair()
        with child_end:
            command = [sys.executable, str(self._child), str(child_end.fileno()), *arguments]
            environment = {"PYTHONPATH": str(CHILD.parents[2]), "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(command, pass_fds=(child_end.fileno(),), env=environment)
        self.end = AgentEnd(agent_end, on_packet=self._on_packet, on_gone=lambda: None)
        self.exchange = Exchange(
            run_id="r",
            term=1,
            token="t" * 32,
            window_parcels=2,
            addresses=addresses,
            service=self.service,
            on_failed=self.failures.append,
            on_client_lost=self.failures.append,
            door=self.door,
            has_checksums=self._has_checksums,
        )
        deliver = self.exchange.deliver

        def counted(link: Link, header: FrameHeader, view: memoryview) -> None:
            self.num_checksums += header.crc32c is not None
            deliver(link, header, view)

        self.exchange.deliver = counted
        self.exchange.add(EXECUTOR, self, [["first", "second"].index(arguments[0])])

    def send(self, message: local_pb2.ToChild, descriptors: tuple[int, ...] = ()) -> None:
        self.end.send(message.SerializeToString(), descriptors)

    def _on_packet(self, packet: Packet) -> None:
        message = local_pb2.FromChild.FromString(packet.message)
        if message.HasField("ready"):
            self.reported.set()
        else:
            self.exchange.received(EXECUTOR, message, packet.descriptors)

    async def close(self) -> None:
        if self.exchange is not None:
            await self.exchange.close()
            if self.door is not None:
                await self.door.close()
            self.end.close()
            await asyncio.to_thread(self.process.wait, 10)
        await self._server.stop(0.0)


def count_of(counts: list[worker_pb2.LinkCount], link: Link) -> worker_pb2.LinkCount:
    (found,) = [count for count in counts if Link.from_message(count.link) == link]
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("doors", [(False, False), (True, False), (False, True), (True, True)])
async def test_parcels_arrive_in_order_and_all_segments_come_back(doors: tuple[bool, bool]) -> None:
    """Each way of a link, and an agent that knows the shorter one beside one that does not."""
    num_parcels = 12
    first, second = HalfAgent(has_checksums=True), HalfAgent(has_checksums=False)
    addresses = {0: first.address, 1: second.address}
    try:
        await first.open(addresses, ["first", str(num_parcels)], has_door=doors[0])
        await second.open(addresses, ["second", str(num_parcels)], has_door=doors[1])
        async with asyncio.timeout(60):
            await asyncio.gather(first.reported.wait(), second.reported.wait())
            while first.exchange.num_segments_in_use or second.exchange.num_segments_in_use:
                await asyncio.sleep(0.02)
        assert first.failures == second.failures == []
        forward = count_of(first.exchange.counts(), FORWARD)
        backward = count_of(second.exchange.counts(), BACKWARD)
        assert forward.tensor_bytes == num_parcels * (LARGE_BYTES + 2)
        assert backward.tensor_bytes == num_parcels * LARGE_BYTES
        if all(doors):
            assert {forward.way, backward.way} == {types_pb2.LINK_WAY_SAME_HOST}
            assert forward.wire_bytes < LARGE_BYTES * num_parcels
        else:
            assert {forward.way, backward.way} == {types_pb2.LINK_WAY_GRPC}
            assert forward.num_frames == num_parcels * 4
            assert LARGE_BYTES * num_parcels < forward.wire_bytes < LARGE_BYTES * num_parcels * 1.01
            assert first.num_checksums == 0
            assert second.num_checksums > 0
        assert forward.coded_bytes == forward.tensor_bytes
    finally:
        await first.close()
        await second.close()


@pytest.mark.asyncio
async def test_f18_a_worker_that_is_not_at_its_address_is_named() -> None:
    agent = HalfAgent()
    try:
        await agent.open({0: agent.address, 1: "127.0.0.1:1"}, ["first", "1"])
        async with asyncio.timeout(30):
            while not agent.failures:
                await asyncio.sleep(0.02)
    finally:
        await agent.close()
    (failure,) = agent.failures
    assert failure.code is ErrorCode.LINK_LOST
    assert "127.0.0.1:1" in failure.details.message


@pytest.mark.asyncio
async def test_f18_a_worker_that_answers_at_anothers_address_is_named() -> None:
    """As where two hosts each say that they listen on their own loopback, on one port."""
    agent = HalfAgent()
    try:
        await agent.open({0: agent.address, 1: agent.address}, ["first", "1"])
        async with asyncio.timeout(30):
            while not agent.failures:
                await asyncio.sleep(0.02)
    finally:
        await agent.close()
    failure = agent.failures[0]
    assert failure.code is ErrorCode.LINK_LOST
    assert "came to a worker that has no stage 1" in failure.details.message
    assert "--advertise" in failure.details.advice
