"""Servers that are closed by default.

A plain gRPC server shares its port with a second one without a word, answers anybody, and binds wherever it is told.
Here a port has one owner, faces the network only when somebody said so, and every call of a server with a token must
present it.
"""

from __future__ import annotations

import errno
import hmac
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import options
from pipesvc.net.addresses import Address, loopback_meant
from pipesvc.net.reports import abort_with

_TOKEN_ADVICE: Final = "Give --token-file, or set PIPESVC_TOKEN_FILE, to a copy of STATE_DIR/token of the coordinator"
_LISTEN_ADVICE: Final = "listen on an IP address of this host, or on 0.0.0.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Where a server listens, and the warning to print if that faces the network ("" if not)."""

    address: Address
    banner: str


def make_server(*, token: str | None, server_options: options.Options = options.CONTROL_SERVER) -> grpc.aio.Server:
    """An asyncio server. With a token every call must present it; None is for services that check calls themselves."""
    interceptors = [] if token is None else [TokenInterceptor(token)]
    return grpc.aio.server(interceptors=interceptors, options=server_options)


def bind(server: grpc.aio.Server, address: Address, *, is_insecure: bool = False) -> Bound:
    """Listen; the port is in the answer where 0 was asked for. Raises NOT_LOOPBACK or PORT_TAKEN."""
    banner = ""
    if not address.is_loopback:
        if not is_insecure:
            raise PipesvcError(
                ErrorCode.NOT_LOOPBACK,
                f"{address} faces the network, and this version has no encryption",
                advice="Listen on 127.0.0.1, or say --insecure on a network that you trust",
            )
        banner = (
            f"WARNING: {address} faces the network without encryption: anyone on it can read and change what passes"
        )
        if meant := loopback_meant(address):
            banner = (
                f"WARNING: {address.host} is {meant} on this host: no other host reaches {address}; {_LISTEN_ADVICE}"
            )
    # "localhost" may mean two sockets of which gRPC is content with one.
    listened = Address(host="127.0.0.1", port=address.port) if address.host == "localhost" else address
    if (failure := _failure_of_plain_socket(listened)) is not None:
        raise failure  # gRPC would say the same, after lines of its own on standard error
    try:
        port = server.add_insecure_port(str(listened))
    except RuntimeError as error:
        raise _taken(listened) from error
    if port == 0:
        raise _taken(listened)
    return Bound(address=Address(host=address.host, port=port), banner=banner)


def presented_token(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    """The bearer token among a call's metadata, "" if there is none."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ").strip()
    return ""


def is_same_token(presented: str, expected: str) -> bool:
    """Compares in a time that says nothing about where they differ. An empty token equals nothing."""
    return bool(expected) and hmac.compare_digest(presented.encode(), expected.encode())


if TYPE_CHECKING:
    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _Interceptor = grpc.aio.ServerInterceptor


class TokenInterceptor(_Interceptor):
    """Refuses every call, known or unknown, that does not present the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        presented = presented_token(tuple(handler_call_details.invocation_metadata or ()))
        if is_same_token(presented, self._token):
            return await continuation(handler_call_details)
        why = "the token is not this server's" if presented else "the call presents no token"
        error = PipesvcError(ErrorCode.UNAUTHENTICATED, why, advice=_TOKEN_ADVICE)

        async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await abort_with(context, error)

        # As a stream handler it answers any kind of call, and before it has read a single message.
        return grpc.stream_stream_rpc_method_handler(refuse)


def _failure_of_plain_socket(address: Address) -> PipesvcError | None:
    """Why nobody can listen there; None where only gRPC knows.

    With SO_REUSEADDR as gRPC sets it: else a port whose last connections have just ended would count as taken.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except socket.gaierror as error:
        message = f"cannot listen on {address}: this host does not know the name {address.host} ({error.strerror})"
        return PipesvcError(ErrorCode.PORT_TAKEN, message, advice="Listen on an address of this machine")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken(address)
        if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
            message = f"cannot listen on {address}: {error.strerror or error}"
            advice = "Listen on an address of this machine and a port above 1023"
            return PipesvcError(ErrorCode.PORT_TAKEN, message, advice=advice)
    return None


def _taken(address: Address) -> PipesvcError:
    return PipesvcError(
        ErrorCode.PORT_TAKEN,
        f"cannot listen on {address}: another process has this port",
        advice="Choose another port, or port 0 for any free one, or stop the other process",
    )
