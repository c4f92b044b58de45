"""Tensors of any size over one link: whole, in chunks that a message holds, and without copies that need not be."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipesvc.wire.frames import CHUNK_BYTES, FrameHeader
from pipesvc.wire.links import Link
from tests.contract.link_harness import receiver, sending

GIB = 1 << 30
SIZES = (3_900_000, 4_100_000, 300_000_000, 2 * GIB + 12_345)
# Bytes between two places that are looked at; they lie at other places in each chunk.
STRIDE = 64 * CHUNK_BYTES - 13
NEEDED_BYTES = 6 * GIB


def free_bytes() -> int:
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def marks(num_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Each place, and what is there."""
    for place in (*range(0, num_bytes - 8, STRIDE), num_bytes - 8):
        yield place, (place + num_bytes).to_bytes(8, "little")


@pytest.mark.asyncio
@pytest.mark.parametrize("num_bytes", SIZES)
async def test_w01_tensors_of_any_size_arrive_whole(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if free_bytes() < NEEDED_BYTES:
        pytest.skip(f"less than {NEEDED_BYTES / GIB:.0f} GiB of memory are free")
    arrived: list[list[tuple[int, bytes]]] = []
    # Pages of zeros that nobody has written cost nothing.
    with mmap.mmap(-1, num_bytes) as content:
        for place, mark in marks(num_bytes):
            content[place : place + 8] = mark
        async with receiver() as there, sending(there.address) as here:

            def allocate(_link: Link, header: FrameHeader) -> memoryview:
                return memoryview(mmap.mmap(-1, header.total_bytes))

            def deliver(_link: Link, header: FrameHeader, view: memoryview) -> None:
                assert view.nbytes == header.total_bytes == num_bytes
                arrived.append([(place, bytes(view[place : place + 8])) for place, _ in marks(num_bytes)])

            monkeypatch.setattr(there.sink, "allocate", allocate)
            monkeypatch.setattr(there.sink, "deliver", deliver)
            here.send(content)
            await here.sender.drain(100)
            counts = here.sender.counts
    assert arrived == [list(marks(num_bytes))]
    assert here.failures == []
    assert counts.tensor_bytes == num_bytes
    assert counts.num_frames == -(-num_bytes // CHUNK_BYTES)
