"""Connections over real time: idle ones that stay, one that is dialled again, and who shares one with whom."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest

from pipesvc.net import channels, servers
from pipesvc.net.addresses import parse
from tests.contract.link_harness import BACKWARD, FORWARD, receiver, sending, until
from tests.proxy import Direction, Proxy

# A client pings an idle stream every 4 s; a server allows one in 2 s. In three times the one and eight times the other
# gRPC's own defaults have ended a connection (three pings too many) or have ceased to ping (after two).
IDLE_S = 18.0
_PREFACE_BYTES = 24
_PING, _GOAWAY = 6, 7
# Longer than the longest pause between two attempts to dial, with its jitter; the default would wait 6 s more.
AWAY_S = 10.0
SOON_S = 4.0


class TappedProxy(Proxy):
    """Keeps what passes, by direction. For one connection."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked, self.answered = bytearray(), bytearray()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction, budget: int | None
    ) -> None:
        read, tape = reader.read, self.asked if direction is Direction.THERE else self.answered

        async def noted(num_bytes: int = -1) -> bytes:
            data = await read(num_bytes)
            tape.extend(data)
            return data

        setattr(reader, "read", noted)  # noqa: B010
        await super()._pump(reader, writer, direction, budget)


def frames(tape: bytes | bytearray) -> Counter[int]:
    """HTTP/2 frames by type; of pings those alone that are no answers."""
    found: Counter[int] = Counter()
    at = 0
    while at + 9 <= len(tape):
        kind, flags = tape[at + 3], tape[at + 4]
        found[kind] += not (kind == _PING and flags & 1)
        at += 9 + int.from_bytes(tape[at : at + 3], "big")
    return found


@pytest.mark.asyncio
async def test_f21_an_idle_stream_is_pinged_as_long_as_it_is_open_and_sees_no_goaway() -> None:
    """The client's side: without its options it would cease to ping. The server's: it would answer by hanging up."""
    async with receiver() as there, TappedProxy(there.address) as proxy, sending(proxy.address) as here:
        here.send(b"before")
        await here.sender.drain(20)
        before = frames(proxy.asked[_PREFACE_BYTES:])
        await asyncio.sleep(IDLE_S)
        asked = frames(proxy.asked[_PREFACE_BYTES:])
        assert asked[_PING] - before[_PING] >= 4
        assert frames(proxy.answered)[_GOAWAY] == 0
        here.send(b"after")
        await here.sender.drain(20)
        assert proxy.num_connections == 1
    assert there.sink.contents == [b"before", b"after"]
    assert here.failures == []


@pytest.mark.asyncio
async def test_every_channel_has_a_connection_of_its_own() -> None:
    async with (
        receiver() as there,
        Proxy(there.address) as proxy,
        sending(proxy.address, FORWARD) as first,
        sending(proxy.address, BACKWARD) as second,
    ):
        for each in (first, second):
            each.send(b"x")
            await each.sender.drain(20)
        assert proxy.num_connections == 2


async def _asks(channel: grpc.aio.Channel) -> None:
    """As callers do that try again and again."""
    while True:
        channel.get_state(try_to_connect=True)
        await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_a_peer_that_was_away_is_reached_soon_after_it_is_back() -> None:
    server = servers.make_server(token=None)
    address = servers.bind(server, parse("127.0.0.1:0")).address
    await server.start()
    async with AsyncExitStack() as stack:
        dialled = [await stack.enter_async_context(channels.aio_channel(address)) for _ in range(6)]
        for channel in dialled:
            await asyncio.wait_for(channel.channel_ready(), 20)
        await server.stop(None)
        tasks = [asyncio.create_task(_asks(channel)) for channel in dialled]
        states = [channel.get_state() for channel in dialled]
        await until(lambda: all(channel.get_state() is not states[0] for channel in dialled), "the breaks")
        await asyncio.sleep(AWAY_S)
        server = servers.make_server(token=None)
        servers.bind(server, address)
        await server.start()
        started_s = time.monotonic()
        await asyncio.wait_for(asyncio.gather(*(channel.channel_ready() for channel in dialled)), 30)
        took_s = time.monotonic() - started_s
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop(None)
    assert took_s < SOON_S
