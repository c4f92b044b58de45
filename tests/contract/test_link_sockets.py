"""Sockets of links that were closed go at once: an idle worker must not keep them until a collection of cycles."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest

from tests.contract.link_harness import RUN, receiver, sending, until
from tests.proxy import Proxy


def num_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:  # of the listing itself
            continue
    return count


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["drained", "busy", "run closed first", "connection cut"])
async def test_closed_links_leave_no_socket(end: str) -> None:
    async with receiver() as there, Proxy(there.address) as proxy:
        before = num_sockets()
        async with sending(proxy.address if end == "connection cut" else there.address) as here:
            here.send(b"x")
            await here.sender.drain(20)
            assert num_sockets() > before
            if end == "busy":
                here.send(bytes(20_000_000))
                await asyncio.sleep(0)
            elif end == "run closed first":
                there.service.close_run(RUN)
                await until(lambda: "connection" in here.sender.awaiting, "the end of the stream")
            elif end == "connection cut":
                proxy.cut()
                here.send(b"y")
                await here.sender.drain(20)
        # The sender itself is still referred to, as by a run that is being described.
        await until(lambda: num_sockets() <= before, f"no sockets but the {before} of before")
        assert here.sender.num_unacknowledged == 0
