"""Servers and channels over real loopback sockets: closed by default, and errors arrive whole."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from pipesvc.errors import ErrorCode, ErrorDetails, PipesvcError, Where
from pipesvc.net import channels, options, reports, servers
from pipesvc.net.addresses import Address, parse

TOKEN = "t0ken-of-this-server"
SERVICE = "test.Service"
REFUSED = PipesvcError.of(
    ErrorDetails(
        code=ErrorCode.STAGE_FAILED,
        message="no größe",
        where=Where(run_id="r", stage=2),
        traceback="Traceback\n" + "x" * 200_000 + "\nthe end",
    )
)


async def echo(request: bytes, _context: object) -> bytes:
    return request


async def fail(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    await reports.abort_with(context, REFUSED)


def service() -> grpc.GenericRpcHandler[bytes, bytes]:
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in (("Echo", echo), ("Fail", fail))}
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


@pytest_asyncio.fixture
async def address() -> AsyncIterator[Address]:
    server = servers.make_server(token=TOKEN)
    server.add_generic_rpc_handlers((service(),))
    bound = servers.bind(server, parse("127.0.0.1:0"))
    assert bound.address.port > 0
    assert bound.banner == ""
    await server.start()
    yield bound.address
    await server.stop(None)


async def call(address: Address, method: str, request: bytes, token: str = TOKEN) -> bytes:
    async with channels.aio_channel(address) as channel:
        do: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/{SERVICE}/{method}", None, None)
        return await do(request, metadata=channels.auth_metadata(token), timeout=20)


async def error_of(address: Address, method: str, request: bytes = b"", token: str = TOKEN) -> PipesvcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(address, method, request, token)
    return reports.from_rpc_error(caught.value, address=address)


@pytest.mark.asyncio
async def test_call_with_the_token_is_answered(address: Address) -> None:
    assert await call(address, "Echo", b"x") == b"x"
    bundle = bytes(16 << 20)
    assert await call(address, "Echo", bundle) == bundle


@pytest.mark.asyncio
@pytest.mark.parametrize(("token", "why"), [("", "no token"), ("t0ken-of-this-serve", "not this server's")])
@pytest.mark.parametrize("method", ["Echo", "Unknown"])
async def test_call_without_the_token_is_refused(address: Address, token: str, why: str, method: str) -> None:
    error = await error_of(address, method, token=token)
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert why in str(error)
    assert "--token-file" in error.details.advice


@pytest.mark.asyncio
async def test_error_arrives_with_its_place_and_the_end_of_its_traceback(address: Address) -> None:
    error = await error_of(address, "Fail")
    assert error.code is ErrorCode.STAGE_FAILED
    assert error.details.message == "no größe"
    assert error.details.where == Where(run_id="r", stage=2)
    assert error.details.traceback.endswith("the end")


@pytest.mark.asyncio
async def test_unknown_call_is_a_mismatch_of_versions(address: Address) -> None:
    assert (await error_of(address, "Unknown")).code is ErrorCode.WIRE_MISMATCH


@pytest.mark.asyncio
async def test_w02_proxy_variables_are_ignored(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.setenv(name, "")
    assert await call(address, "Echo", b"x") == b"x"


@pytest.mark.asyncio
async def test_sync_channel_speaks_the_same(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    def in_thread() -> tuple[bytes, PipesvcError]:
        metadata = channels.auth_metadata(TOKEN)
        with channels.sync_channel(address) as channel:
            do = channel.unary_unary(f"/{SERVICE}/Echo", None, None)
            answer = do(b"x", metadata=metadata, timeout=20)
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/{SERVICE}/Fail", None, None)(b"", metadata=metadata, timeout=20)
        return answer, reports.from_rpc_error(caught.value, address=address)

    answer, error = await asyncio.to_thread(in_thread)
    assert answer == b"x"
    assert error.code is ErrorCode.STAGE_FAILED


@pytest.mark.asyncio
async def test_nobody_there_is_a_coordinator_absent() -> None:
    server = servers.make_server(token=None)
    bound = servers.bind(server, parse("127.0.0.1:0"))
    await server.start()
    await server.stop(None)
    error = await error_of(bound.address, "Echo")
    assert error.code is ErrorCode.COORDINATOR_ABSENT
    assert str(bound.address) in str(error)


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_w03_second_server_on_a_port_is_refused(
    address: Address, host: str, capfd: pytest.CaptureFixture[str]
) -> None:
    second = servers.make_server(token=None, server_options=options.DATA_SERVER)
    with pytest.raises(PipesvcError, match=f"{address.port}") as caught:
        servers.bind(second, Address(host=host, port=address.port))
    assert caught.value.code is ErrorCode.PORT_TAKEN
    assert "another process has this port" in str(caught.value)
    assert capfd.readouterr().err == ""  # no word of gRPC's own
    await second.stop(None)


@pytest.mark.asyncio
async def test_w03_a_port_is_not_shared_with_a_server_that_would_share_it(address: Address) -> None:
    """The kernel gives a port to two sockets if both ask for SO_REUSEPORT, as gRPC's servers do by default."""
    with socket.socket() as second:
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            second.bind(("127.0.0.1", address.port))


@pytest.mark.asyncio
async def test_address_of_another_machine_cannot_be_listened_on() -> None:
    server = servers.make_server(token=None)
    with pytest.raises(PipesvcError, match=r"192\.0\.2\.1:0") as caught:
        servers.bind(server, parse("192.0.2.1:0"), is_insecure=True)
    assert "another process" not in str(caught.value)
    await server.stop(None)


@pytest.mark.asyncio
async def test_a_name_that_means_nothing_cannot_be_listened_on(capfd: pytest.CaptureFixture[str]) -> None:
    server = servers.make_server(token=None)
    with pytest.raises(PipesvcError, match=r"does not know the name no-such-host\.invalid"):
        servers.bind(server, parse("no-such-host.invalid:0"), is_insecure=True)
    assert capfd.readouterr().err == ""
    await server.stop(None)


@pytest.mark.asyncio
async def test_port_whose_connections_have_just_ended_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()  # closed on this side first: its TIME_WAIT is the port's
    server = servers.make_server(token=None)
    assert servers.bind(server, Address(host="127.0.0.1", port=port)).address.port == port
    await server.start()
    await server.stop(None)


@pytest.mark.asyncio
async def test_network_is_faced_only_on_demand_and_with_a_banner() -> None:
    server = servers.make_server(token=None)
    with pytest.raises(PipesvcError, match="--insecure") as caught:
        servers.bind(server, parse("0.0.0.0:0"))
    assert caught.value.code is ErrorCode.NOT_LOOPBACK
    bound = servers.bind(server, parse("0.0.0.0:0"), is_insecure=True)
    assert bound.address.port > 0
    assert "WARNING" in bound.banner
    await server.start()
    await server.stop(None)
