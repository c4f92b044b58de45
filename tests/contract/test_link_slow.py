"""Receivers that take nothing: the sender's memory stays, and the other direction goes on."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.link_harness import BACKWARD, FORWARD, noise, receiver, sending, until
from tests.proxy import Direction, Proxy

MIB = 1 << 20
NUM_TENSORS = 64


class StuffedProxy(Proxy):
    """Takes nothing from the sender while it is stuffed, so that the kernel's buffers fill."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.flows = asyncio.Event()
        self.flows.set()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction, budget: int | None
    ) -> None:
        read = reader.read

        async def held(num_bytes: int = -1) -> bytes:
            data = await read(num_bytes)
            if direction is Direction.THERE:
                await self.flows.wait()
            return data

        setattr(reader, "read", held)  # noqa: B010
        await super()._pump(reader, writer, direction, budget)


@pytest.mark.asyncio
async def test_what_the_receiver_does_not_read_is_not_written() -> None:
    """A write that did not wait would put all frames into gRPC's memory at once: here a few are in buffers."""
    content = noise(MIB)
    async with (
        receiver(window_parcels=NUM_TENSORS) as there,
        StuffedProxy(there.address) as proxy,
        sending(proxy.address) as here,
    ):
        here.send(b"first")
        await here.sender.drain(20)
        proxy.flows.clear()
        for _ in range(NUM_TENSORS):
            here.send(content)
        before, after = 0, -1
        while before != after:
            before = here.sender.counts.wire_bytes
            await asyncio.sleep(0.5)
            after = here.sender.counts.wire_bytes
        assert MIB < after < 20 * MIB  # of 64
        proxy.flows.set()
        await here.sender.drain(25)
        assert there.sink.contents == [b"first", *[content] * NUM_TENSORS]
    assert here.failures == []


@pytest.mark.asyncio
@pytest.mark.parametrize("why", ["no credit", "nothing read"])
async def test_a_direction_that_is_stuck_leaves_the_other_alone(why: str) -> None:
    async with (
        receiver() as first,
        receiver(window_parcels=1, consumes=why != "no credit") as second,
        StuffedProxy(second.address) as proxy,
        sending(proxy.address, FORWARD) as to_second,
        sending(first.address, BACKWARD) as to_first,
    ):
        to_second.send(b"x")
        await to_second.sender.drain(20)
        if why == "nothing read":
            proxy.flows.clear()
        for _ in range(NUM_TENSORS):
            to_second.send(noise(MIB))
        for _ in range(4):
            await asyncio.sleep(0.1)
            to_first.send(noise(3 * MIB))
            await to_first.sender.drain(20)
        assert len(first.sink.contents) == 4
        assert len(second.sink.contents) == 1
        assert to_second.sender.num_unacknowledged == NUM_TENSORS
        proxy.flows.set()
        if why == "no credit":
            second.sink.consumes = True
            second.sink.consume(FORWARD)
        await until(lambda: len(second.sink.contents) == 1 + NUM_TENSORS, "all that was held back")
