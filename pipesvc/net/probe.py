"""Whether a worker's data server can be dialled from here, and whether it is that worker's.

That a port answers says little: with one fixed port on every host, an address that leads back to this host is answered
by this host's own worker. So the question is put to the LinkService itself, as a call that names no run; the refusal
names the worker, and nothing else happens there.
"""

from __future__ import annotations

import re
from typing import Final

import grpc
import grpc.aio

from pipesvc.errors import ErrorCode
from pipesvc.net import options
from pipesvc.net.addresses import Address
from pipesvc.net.channels import aio_channel
from pipesvc.net.link_sender import CARRY
from pipesvc.net.reports import report_of, status_and_text

# gRPC tells the system's reason last, after the addresses that it tried.
_REASON: Final = re.compile(r"(?:.*: )?(?P<words>[^:]+?)(?: \(\d+\))?\]?\s*")
# Its words for a connection that nobody answered.
_SILENT: Final = ("handshaker shutdown", "timed out")


async def problem_at(address: Address, worker: str, limit_s: float) -> str:
    """Why the worker of that name cannot be dialled at the address; "" if it answers."""
    async with aio_channel(address, options.DATA_CHANNEL) as channel:
        call = channel.stream_stream(CARRY, None, None)(None, timeout=limit_s)
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return _judged(error, worker, limit_s)
        finally:
            call.cancel()
    return "what answers there is no worker"


def _judged(error: grpc.aio.AioRpcError, worker: str, limit_s: float) -> str:
    report = report_of(error)
    if report is not None and report.code is ErrorCode.RUN_NOT_FOUND:
        # Who does not say its name is of an older version.
        answered = report.where.worker
        return "" if answered in ("", worker) else f"worker {answered} answers there"
    code, text = status_and_text(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {limit_s:g} s"
    if code is grpc.StatusCode.UNAVAILABLE:
        found = _REASON.fullmatch(text)
        words = found["words"] if found is not None else text
        return "no answer" if any(silent in words for silent in _SILENT) else words
    return f"what answers there is no worker ({code.name})"
