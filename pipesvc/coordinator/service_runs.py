"""The calls of clients: each checks its request, asks the hub, and streams what is large.

Thin on purpose: whatever is decided is decided by the machine, and another transport would need these few lines
anew.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from pipesvc.coordinator import output_events
from pipesvc.coordinator.hub import Hub
from pipesvc.coordinator.message_file import read_messages
from pipesvc.coordinator.run_record import ENDED_STATES
from pipesvc.coordinator.run_view import unreached_message, without_flow
from pipesvc.coordinator.validation import check_submission
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.net.reports import abort_with
from pipesvc.rpc.v1 import run_pb2, run_pb2_grpc

_PIECE_BYTES: Final = 1 << 20

Context = Any
S = TypeVar("S")
Q = TypeVar("Q")
R = TypeVar("R")


def _answering(call: Callable[[S, Q, Context], Awaitable[R]]) -> Callable[[S, Q, Context], Awaitable[R]]:
    """A named error becomes the status and the report of the call."""

    @functools.wraps(call)
    async def wrapped(self: S, request: Q, context: Context) -> R:
        try:
            return await call(self, request, context)
        except (PipesvcError, OSError) as error:
            refusal = _named(error)
        await abort_with(context, refusal)

    return wrapped


def _streaming(call: Callable[[S, Q, Context], AsyncIterator[R]]) -> Callable[[S, Q, Context], AsyncIterator[R]]:
    """The same for calls with many answers."""

    @functools.wraps(call)
    async def wrapped(self: S, request: Q, context: Context) -> AsyncIterator[R]:
        refusal = None
        try:
            async for response in call(self, request, context):
                yield response
        except (PipesvcError, OSError) as error:
            refusal = _named(error)
        if refusal is not None:
            await abort_with(context, refusal)

    return wrapped


def _named(error: PipesvcError | OSError) -> PipesvcError:
    if isinstance(error, PipesvcError):
        return error
    message = f"the coordinator cannot read or write its state directory: {error}"
    return PipesvcError(
        ErrorCode.INTERNAL, message, advice="Look at that disk on the coordinator's host, and try again"
    )


class RunServicer(run_pb2_grpc.RunServiceServicer):
    """gRPC's side of the client's calls; their names are those in the proto."""

    # ruff: noqa: N802

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @_answering
    async def SubmitRun(self, request: run_pb2.SubmitRunRequest, _context: Context) -> run_pb2.SubmitRunResponse:
        check_submission(request.run_id, request.job, request.bundle)
        run = await self._hub.submit(request.run_id, request.job, request.bundle)
        return run_pb2.SubmitRunResponse(run=run)

    @_answering
    async def GetRun(self, request: run_pb2.GetRunRequest, _context: Context) -> run_pb2.GetRunResponse:
        return run_pb2.GetRunResponse(run=self._hub.machine.run(request.run_id))

    @_answering
    async def ListRuns(self, _request: run_pb2.ListRunsRequest, _context: Context) -> run_pb2.ListRunsResponse:
        return run_pb2.ListRunsResponse(runs=map(without_flow, self._hub.machine.runs()))

    @_streaming
    async def WatchRun(
        self, request: run_pb2.WatchRunRequest, _context: Context
    ) -> AsyncIterator[run_pb2.WatchRunResponse]:
        async for response in self._hub.feed.events(request.run_id, request.from_step):
            yield response

    @_answering
    async def CancelRun(self, request: run_pb2.CancelRunRequest, _context: Context) -> run_pb2.CancelRunResponse:
        return run_pb2.CancelRunResponse(run=self._hub.cancel(request.run_id))

    @_streaming
    async def FetchWeights(
        self, request: run_pb2.FetchWeightsRequest, _context: Context
    ) -> AsyncIterator[run_pb2.FetchWeightsResponse]:
        step, files = await self._hub.state(request.run_id)
        with files.weights, files.training or nullcontext():
            if request.with_training and files.training is None:
                message = f"run {request.run_id} has weights alone: an earlier version of pipesvc stored them"
                raise PipesvcError(ErrorCode.WEIGHTS_NOT_READY, message)
            for file in files[: 1 + request.with_training]:
                assert file is not None
                total_bytes, is_training = _size(file), file is files.training
                while data := await asyncio.to_thread(file.read, _PIECE_BYTES):
                    yield run_pb2.FetchWeightsResponse(
                        step=step, total_bytes=total_bytes, data=data, is_training=is_training
                    )

    @_streaming
    async def ReadOutputs(
        self, request: run_pb2.ReadOutputsRequest, _context: Context
    ) -> AsyncIterator[run_pb2.ReadOutputsResponse]:
        async for response in self._hub.files.read_outputs(request.run_id, request.from_step):
            yield response

    @_answering
    async def TakeOutputs(self, request: run_pb2.TakeOutputsRequest, _context: Context) -> run_pb2.TakeOutputsResponse:
        self._hub.tell(output_events.OutputsTaken(run_id=request.run_id, step=request.step))
        return run_pb2.TakeOutputsResponse()

    @_answering
    async def UploadWeights(
        self, requests: AsyncIterator[run_pb2.UploadWeightsRequest], _context: Context
    ) -> run_pb2.UploadWeightsResponse:
        await self._hub.files.upload(requests)
        return run_pb2.UploadWeightsResponse()

    @_streaming
    async def ReadLogs(
        self, request: run_pb2.ReadLogsRequest, _context: Context
    ) -> AsyncIterator[run_pb2.ReadLogsResponse]:
        path = self._hub.store.log_path(self._hub.machine.run(request.run_id).run_id)
        offset = 0
        with self._hub.feed.watching(request.run_id) as woken:
            while True:
                woken.clear()
                is_ended = self._hub.machine.run(request.run_id).state in ENDED_STATES
                messages, offset = await asyncio.to_thread(read_messages, path, offset)
                for message in messages:
                    yield run_pb2.ReadLogsResponse.FromString(message)
                if not messages:
                    if is_ended or not request.follow:
                        return
                    await woken.wait()

    @_streaming
    async def ReadTrace(
        self, request: run_pb2.ReadTraceRequest, _context: Context
    ) -> AsyncIterator[run_pb2.ReadTraceResponse]:
        path: Path = self._hub.store.trace_path(self._hub.machine.run(request.run_id).run_id)
        messages, offset = await asyncio.to_thread(read_messages, path, 0)
        while messages:
            for message in messages:
                yield run_pb2.ReadTraceResponse.FromString(message)
            messages, offset = await asyncio.to_thread(read_messages, path, offset)

    @_answering
    async def LocateFeeder(
        self, request: run_pb2.LocateFeederRequest, _context: Context
    ) -> run_pb2.LocateFeederResponse:
        run = self._hub.machine.run(request.run_id)
        where = Where(run_id=request.run_id)
        record = self._hub.machine.record(request.run_id)
        if record is None:
            raise PipesvcError(ErrorCode.RUN_CANCELLED, f"run {request.run_id} has ended", where=where)
        if not record.job.data.is_streamed:
            message = f"the data of run {request.run_id} has a source on a worker and is not streamed"
            raise PipesvcError(ErrorCode.INVALID_JOB, message, where=where)
        plan = record.plan
        member = self._hub.machine.fleet.member(plan.feeder_worker) if plan is not None else None
        if not record.is_feeder_ready or member is None:
            said = run_pb2.RunState.Name(run.state)
            message = f"run {request.run_id} has no feeder yet ({said})"
            raise PipesvcError(ErrorCode.MISSING_WORKER, message, advice="Ask again", where=where)
        return run_pb2.LocateFeederResponse(
            data_address=member.registration.data_address, link_token=record.link_token, term=record.term
        )

    @_streaming
    async def ProfileJob(
        self, request: run_pb2.ProfileJobRequest, _context: Context
    ) -> AsyncIterator[run_pb2.ProfileJobResponse]:
        async for response in self._hub.profiles.measure(request):
            yield response

    @_answering
    async def GetStatus(self, _request: run_pb2.GetStatusRequest, _context: Context) -> run_pb2.GetStatusResponse:
        machine, now_s = self._hub.machine, self._hub.now_s()
        workers = [
            run_pb2.WorkerStatus(
                registration=member.registration,
                is_draining=member.is_draining,
                last_beat_age_s=now_s - member.heard_s,
                children=member.children,
            )
            for member in machine.fleet.members
        ]
        unreached = [unreached_message(finding) for finding in machine.fleet.reach.unreached]
        return run_pb2.GetStatusResponse(
            workers=workers,
            runs=map(without_flow, machine.live_runs()),
            term=machine.term,
            unreached=unreached,
        )


def _size(file: BinaryIO) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size
