"""Dialling a worker without wanting anything of it: what is told apart, and what it leaves behind."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pipesvc.net import options, servers
from pipesvc.net.addresses import Address, parse
from pipesvc.net.link_service import LinkService
from pipesvc.net.probe import problem_at
from tests.contract.link_harness import receiver

LIMIT_S = 20.0


@pytest.mark.asyncio
async def test_a_worker_answers_by_its_name() -> None:
    server = servers.make_server(token=None, server_options=options.DATA_SERVER)
    LinkService("b").add_to(server)
    address = servers.bind(server, parse("127.0.0.1:0")).address
    await server.start()
    try:
        assert await problem_at(address, "b", LIMIT_S) == ""
        assert await problem_at(address, "a", LIMIT_S) == "worker b answers there"
    finally:
        await server.stop(None)


@pytest.mark.asyncio
async def test_a_probe_leaves_an_open_run_alone() -> None:
    async with receiver() as there:
        assert await problem_at(there.address, "b", LIMIT_S) == ""
        assert there.sink.headers == []
        assert there.sink.num_allocated == 0


@pytest.mark.asyncio
async def test_a_closed_port_and_an_unknown_name_are_told() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = Address(host="127.0.0.1", port=closed.getsockname()[1])
        assert await problem_at(address, "b", LIMIT_S) == "Connection refused"
    # What a resolver says, and when, is its own affair.
    assert await problem_at(parse("no-such-host.invalid:7001"), "b", LIMIT_S)


@pytest.mark.asyncio
async def test_a_port_that_never_answers_takes_no_longer_than_the_limit() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = Address(host="127.0.0.1", port=deaf.getsockname()[1])
        async with asyncio.timeout(LIMIT_S):
            assert (await problem_at(address, "b", 0.3)).startswith("no answer")


@pytest.mark.asyncio
async def test_another_service_is_no_worker() -> None:
    server = servers.make_server(token="t" * 32)
    address = servers.bind(server, parse("127.0.0.1:0")).address
    await server.start()
    try:
        assert "no worker" in await problem_at(address, "b", LIMIT_S)
    finally:
        await server.stop(None)
