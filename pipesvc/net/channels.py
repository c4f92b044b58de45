"""Channels to other processes, asyncio and plain, always with the project's options.

A channel made elsewhere would obey http_proxy, hold back reconnects for two minutes and share sockets; so nothing else
calls `grpc.insecure_channel`. Making a channel dials nothing: the first call does.
"""

from __future__ import annotations

import grpc
import grpc.aio

from pipesvc.net import options
from pipesvc.net.addresses import Address

Metadata = tuple[tuple[str, str], ...]


def aio_channel(address: Address, channel_options: options.Options = options.CONTROL_CHANNEL) -> grpc.aio.Channel:
    """A channel for the running event loop."""
    return grpc.aio.insecure_channel(str(address), options=channel_options)


def sync_channel(address: Address, channel_options: options.Options = options.CONTROL_CHANNEL) -> grpc.Channel:
    """A channel for callers without an event loop."""
    return grpc.insecure_channel(str(address), options=channel_options)


def auth_metadata(token: str) -> Metadata:
    """Metadata that presents a token; none for an empty one."""
    return (("authorization", f"Bearer {token}"),) if token else ()
