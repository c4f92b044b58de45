"""Bytes that change on the way: noticed, sent again, and the end of the link only when it goes on."""

from __future__ import annotations

import logging

import pytest

from pipesvc.errors import ErrorCode
from pipesvc.net.corruption import MAX_CORRUPT
from tests.contract.link_harness import RUN, noise, receiver, sending, until
from tests.proxy import Proxy

# Without a frame's header in between wherever it is found: a link's chunks and HTTP/2's frames are longer.
NEEDLE = b"needle in a haystack"
CHANGED = b"noodle in a haystack"
CONTENT = NEEDLE * 200_000  # four chunks


@pytest.mark.asyncio
async def test_a_changed_byte_is_noticed_and_the_tensor_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    contents = [noise(10, 1), CONTENT, noise(3_000_000, 2)]
    async with receiver() as there, Proxy(there.address) as proxy, sending(proxy.address) as here:
        proxy.changes = [(NEEDLE, CHANGED)]
        with caplog.at_level(logging.WARNING, "pipesvc.links"):
            for index, content in enumerate(contents):
                here.send(content, micro_batch=index)
            await here.sender.drain(25)
        assert proxy.changes == []
        assert here.failures == []
    assert there.sink.contents == contents
    assert there.sink.sequences == [1, 2, 3]
    assert here.acknowledged == [0, 1, 2]
    (warning,) = caplog.messages
    assert "of tensor 2 came over 0>1/activation with another checksum than they were sent with" in warning
    assert "step 1" in warning
    assert "micro-batch 1" in warning


@pytest.mark.asyncio
async def test_changes_between_whole_tensors_never_end_a_link() -> None:
    async with receiver() as there, Proxy(there.address) as proxy, sending(proxy.address) as here:
        for index in range(MAX_CORRUPT + 1):
            proxy.changes = [(NEEDLE, CHANGED)]
            here.send(CONTENT[:100_000], micro_batch=index)
            await here.sender.drain(25)
            assert proxy.changes == []
        assert here.failures == []
    assert there.sink.contents == [CONTENT[:100_000]] * (MAX_CORRUPT + 1)


@pytest.mark.asyncio
async def test_what_changes_every_time_ends_the_link_by_name() -> None:
    async with receiver() as there, Proxy(there.address) as proxy, sending(proxy.address) as here:
        proxy.changes = [(NEEDLE, CHANGED)] * 100_000
        here.send(b"before")
        here.send(CONTENT, micro_batch=7)
        await until(lambda: bool(here.failures), "the failure")
        assert proxy.changes
    assert there.sink.contents == [b"before"]
    (failure,) = here.failures
    assert failure.code is ErrorCode.BAD_FRAME
    assert f"0>1/activation with another checksum than they were sent with, {MAX_CORRUPT} times in a row" in str(
        failure
    )
    assert "Look for what changes bytes on the way" in failure.details.advice
    where = failure.details.where
    assert (where.run_id, where.step, where.micro_batch) == (RUN, 1, 7)


@pytest.mark.asyncio
async def test_without_checksums_nobody_notices() -> None:
    """The option does what it says; the frames are then those of before."""
    async with receiver() as there, Proxy(there.address) as proxy, sending(proxy.address, has_checksums=False) as here:
        proxy.changes = [(NEEDLE, CHANGED)]
        here.send(CONTENT[:100_000])
        await here.sender.drain(25)
    assert len(there.sink.contents[0]) == 100_000
    assert there.sink.contents[0].count(CHANGED) == 1
    assert there.sink.headers[0].crc32c is None
