"""The stream of a worker: one reader, one writer, and whichever of them ends first ends the stream.

Only `hub` and the machine know what messages mean; here they are moved, and a worker that may not come in is told
why.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from pipesvc.coordinator.hub import Hub
from pipesvc.coordinator.limits import BEAT_INTERVAL_S, BEAT_TIMEOUT_S
from pipesvc.coordinator.outbox import Session
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.ending import end
from pipesvc.net.reports import abort_with, from_message
from pipesvc.rpc.v1 import worker_pb2, worker_pb2_grpc

# A stream that registers nobody within this time is ended.
_REGISTER_BOUND_S: Final = 10.0
# What `read` gives at the end of a stream.
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]

Context = Any


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """gRPC's side of `Attach`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def Attach(self, _requests: object, context: Context) -> None:  # noqa: N802 (the name in the proto)
        refusal: PipesvcError | None
        try:
            session = self._hub.attach(await _registration(context))
        except PipesvcError as error:
            refusal = error
        else:
            refusal = await self._converse(session, context)
        if refusal is not None:
            await abort_with(context, refusal)

    async def _converse(self, session: Session, context: Context) -> PipesvcError | None:
        """Until one side ends; returns the error to end with, if it is this one."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await context.write(worker_pb2.AttachResponse(welcome=self._welcome()))
            reader = asyncio.create_task(self._read(session, context))
            writer = asyncio.create_task(_write(session, context))
            tasks = [reader, writer]
            waited: list[asyncio.Future[Any]] = [*tasks, session.ended]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.detach(session)
            await end(tasks)
        return PipesvcError.of(from_message(session.ended.result())) if session.ended.done() else None

    async def _read(self, session: Session, context: Context) -> None:
        while (message := await context.read()) is not _EOF:
            await self._hub.hear(session, message)

    def _welcome(self) -> worker_pb2.Welcome:
        return worker_pb2.Welcome(
            term=self._hub.machine.term,
            beat_interval_ms=int(BEAT_INTERVAL_S * 1000),
            beat_timeout_ms=int(BEAT_TIMEOUT_S * 1000),
        )


async def _registration(context: Context) -> worker_pb2.Register:
    try:
        first = await asyncio.wait_for(context.read(), _REGISTER_BOUND_S)
    except TimeoutError:
        message = f"the worker did not register within {_REGISTER_BOUND_S:g} s"
        raise PipesvcError(ErrorCode.TIMED_OUT, message) from None
    if first is _EOF or not first.HasField("register"):
        raise PipesvcError(ErrorCode.BAD_FRAME, "the first message of a worker must be its registration")
    registration: worker_pb2.Register = first.register
    return registration


async def _write(session: Session, context: Context) -> None:
    while True:
        await context.write(await session.outbox.first())
        session.outbox.drop_first()
