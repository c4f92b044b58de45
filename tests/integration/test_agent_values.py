"""Values of every kind from one real process into another and back, over gRPC and between two children of one host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.frames import CHUNK_BYTES
from tests.contract.test_link_large import NEEDED_BYTES, free_bytes
from tests.integration.agent_values_child import FORWARD, SIZES
from tests.integration.test_agent_exchange import HalfAgent, count_of

CHILD = Path(__file__).with_name("agent_values_child.py")
WAYS = pytest.mark.parametrize("is_near", [True, False], ids=["same host", "gRPC"])


async def there_and_back(case: str, *, is_near: bool, limit_s: float = 60.0) -> tuple[int, int]:
    """Bytes and frames of the way there. The children compare; here both must get to the end of the case."""
    first, second = HalfAgent(child=CHILD), HalfAgent(child=CHILD)
    addresses = {0: first.address, 1: second.address}
    try:
        await first.open(addresses, ["first", case], has_door=is_near)
        await second.open(addresses, ["second", case], has_door=is_near)
        async with asyncio.timeout(limit_s):
            ends = [asyncio.create_task(agent.reported.wait()) for agent in (first, second)]
            while not all(end.done() for end in ends):
                assert first.process.poll() is None, "the first child has ended: see its words"
                assert second.process.poll() is None, "the second child has ended: see its words"
                await asyncio.wait(ends, timeout=0.1)
            while first.exchange.num_segments_in_use or second.exchange.num_segments_in_use:
                await asyncio.sleep(0.02)
        assert first.failures == second.failures == []
        count = count_of(first.exchange.counts(), FORWARD)
        assert count.way == (types_pb2.LINK_WAY_SAME_HOST if is_near else types_pb2.LINK_WAY_GRPC)
        return count.tensor_bytes, count.num_frames
    finally:
        await first.close()
        await second.close()


@WAYS
@pytest.mark.asyncio
async def test_n14_tensors_of_several_dtypes_arrive_as_they_were(is_near: bool) -> None:
    await there_and_back("several dtypes", is_near=is_near)


@WAYS
@pytest.mark.asyncio
async def test_n15_shorter_ones_after_longer_ones_show_nothing_of_them(is_near: bool) -> None:
    await there_and_back("lengths", is_near=is_near)


@WAYS
@pytest.mark.asyncio
async def test_n16_every_dtype_and_form_arrives_byte_for_byte(is_near: bool) -> None:
    await there_and_back("all dtypes", is_near=is_near)


@WAYS
@pytest.mark.asyncio
async def test_n29_counters_of_int64_are_exact(is_near: bool) -> None:
    await there_and_back("counters", is_near=is_near)


@WAYS
@pytest.mark.asyncio
async def test_n30_int8_keeps_its_bound_and_what_is_not_finite(is_near: bool) -> None:
    await there_and_back("through int8", is_near=is_near)


@WAYS
@pytest.mark.asyncio
async def test_w01_tensors_of_any_size_arrive_in_chunks_or_in_one_memory(is_near: bool) -> None:
    if free_bytes() < 2 * NEEDED_BYTES:
        pytest.skip("less than 12 GiB of memory are free")
    num_bytes, num_frames = await there_and_back("large", is_near=is_near, limit_s=110)
    assert num_bytes == 4 + sum(SIZES)
    chunks = len(SIZES) if is_near else sum(-(-size // CHUNK_BYTES) for size in SIZES)
    assert num_frames == 1 + chunks
