"""The receiving end of all links of a worker: one handler that checks, copies each chunk once, and answers with credit.

The generated servicer would parse every frame into a message, and copy its payload twice. This one gets the bytes as
they came, lets `wire.credit` judge them, and writes the payload straight into memory that its run gives it (a
`LinkSink`). Nothing here waits for a consumer: what may arrive is bounded by the credit that was granted.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import grpc
import grpc.aio

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.net.corruption import CorruptError, Corruption
from pipesvc.net.ending import end
from pipesvc.net.reports import abort_with
from pipesvc.net.servers import is_same_token, presented_token
from pipesvc.rpc.v1 import data_pb2
from pipesvc.wire.credit import Arrival, ReceiverState
from pipesvc.wire.frames import FrameHeader, decode
from pipesvc.wire.links import Link

_SERVICE: Final = "pipesvc.rpc.v1.LinkService"
_NO_BYTES: Final = memoryview(b"")
# Of small tensors, one reply for each cost half of the processor time of a link; of large ones none comes so soon.
REPLY_PAUSE_S: Final = 0.002
# A sender gives its link up after as long (`LinkSender`).
LOST_AFTER_S: Final = 10.0

Lost = Callable[[Link, float], None]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


def _nobody_told(link: Link, since_s: float) -> None:
    """For a run that has other means to notice."""


class LinkSink(Protocol):
    """Where a run's tensors go. Both methods return at once; what they raise ends the link and is sent back."""

    def allocate(self, link: Link, header: FrameHeader) -> memoryview:
        """Writable memory of at least `header.total_bytes` bytes; not asked for tensors of none."""

    def deliver(self, link: Link, header: FrameHeader, view: memoryview) -> None:
        """The tensor is whole: `view` is what `allocate` gave, or empty. The header is that of its first frame."""


@dataclass(slots=True)
class _Receiver:
    """One link's receiving state; it outlives the streams that feed it."""

    state: ReceiverState
    corruption: Corruption
    view: memoryview = _NO_BYTES
    is_changed: asyncio.Event = field(default_factory=asyncio.Event)
    failure: PipesvcError | None = None
    # Resolved when the stream that feeds the link now must end.
    ended: asyncio.Future[PipesvcError] | None = None
    # Tells the run that no stream came after the last one.
    loss: asyncio.TimerHandle | None = None

    def forget_loss(self) -> None:
        if self.loss is not None:
            self.loss.cancel()
            self.loss = None

    def end_stream(self, error: PipesvcError) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(error)


@dataclass(frozen=True, slots=True)
class _Run:
    run_id: str
    term: int
    token: str
    window_parcels: int
    sink: LinkSink
    on_lost: Lost
    lost_after_s: float
    door: str
    receivers: dict[Link, _Receiver] = field(default_factory=dict)


class LinkService:
    """Serves `Carry` for the runs that are open. `worker` is the name that a probe is told."""

    def __init__(self, worker: str = "") -> None:
        self._worker: Final = worker
        self._runs: dict[str, _Run] = {}

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register on a server. That server needs no token of its own: each link presents the token of its run."""
        carry = grpc.stream_stream_rpc_method_handler(self._carry)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Carry": carry}),))

    def open_run(
        self,
        run_id: str,
        *,
        term: int,
        token: str,
        window_parcels: int,
        sink: LinkSink,
        on_lost: Lost = _nobody_told,
        lost_after_s: float = LOST_AFTER_S,
        door: str = "",
    ) -> None:
        """Accept links of a run. A newer term replaces an older one; the same or an older one is refused.

        `door` is where senders on this host may find a shorter way, which they are told first.
        `on_lost` is told of a link whose stream ended, and when (of `time.time`), if none came for `lost_after_s`.
        """
        known = self._runs.get(run_id)
        if known is not None:
            if term <= known.term:
                code = ErrorCode.RUN_EXISTS if term == known.term else ErrorCode.STALE_TERM
                message = f"run {run_id} of term {term} where term {known.term} is open"
                raise PipesvcError(code, message, where=Where(run_id=run_id))
            self.close_run(run_id)
        self._runs[run_id] = _Run(run_id, term, token, window_parcels, sink, on_lost, lost_after_s, door)

    def close_run(self, run_id: str) -> None:
        """End the run's links. No call reaches its sink any more; closing again is harmless."""
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        for receiver in run.receivers.values():
            receiver.failure = _not_found(run_id, "has ended here")
            receiver.view = _NO_BYTES
            receiver.forget_loss()
            receiver.end_stream(receiver.failure)

    def consumed(self, run_id: str, link: Link, num_parcels: int) -> None:
        """So many parcels (an absolute count) were taken from the link; of a run that is closed it is ignored."""
        run = self._runs.get(run_id)
        if run is None:
            return
        receiver = run.receivers.get(link)
        if receiver is None:
            message = f"parcels of {link} consumed, which never opened"
            raise PipesvcError(ErrorCode.INTERNAL, message, where=Where(run_id=run_id))
        if receiver.state.consumed(num_parcels):
            receiver.is_changed.set()

    async def _carry(self, _requests: object, context: Context) -> None:
        error = await self._carried(context)
        if error is None:
            return
        try:
            if isinstance(error, CorruptError):
                await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
            await abort_with(context, error)
        except BaseException as abortion:
            # The call keeps this exception, whose frames would keep the call, and that its socket, until the collector
            # of cycles comes by.
            traceback.clear_frames(abortion.__traceback__)
            del _requests, context
            raise

    async def _carried(self, context: Context) -> PipesvcError | None:
        """Carry one stream to its end; gives the error that the sender shall hear."""
        try:
            run, link = self._admit(context)
        except PipesvcError as error:
            return error.with_traceback(None)
        return await _Stream(run, link, context).carry()

    def _admit(self, context: Context) -> tuple[_Run, Link]:
        """The run and link that the call's metadata name, if it may speak for them."""
        metadata: Any = tuple(context.invocation_metadata() or ())
        named = {key: value for key, value in metadata if isinstance(value, str)}
        run_id, term_text = named.get("pipesvc-run", ""), named.get("pipesvc-term", "")
        run = self._runs.get(run_id)
        if run is None:
            raise _not_found(run_id, "is not open here").at(Where(worker=self._worker))
        if not is_same_token(presented_token(metadata), run.token):
            message = f"the token presented is not that of run {run_id}"
            raise PipesvcError(ErrorCode.UNAUTHENTICATED, message, where=Where(run_id=run_id))
        if not (term_text.isascii() and term_text.isdigit()):
            raise PipesvcError(ErrorCode.BAD_FRAME, f"{term_text!r} is no term", where=Where(run_id=run_id))
        if (term := int(term_text)) < run.term:
            message = f"term {term} of run {run_id} is over, term {run.term} is open"
            raise PipesvcError(ErrorCode.STALE_TERM, message, where=Where(run_id=run_id))
        if term > run.term:
            raise _not_found(run_id, f"is open here in term {run.term}, not yet {term}")
        return run, Link.parse(named.get("pipesvc-link", ""))


class _Stream:
    """One stream of one link, from its opening until it ends, breaks or is replaced."""

    def __init__(self, run: _Run, link: Link, context: Context) -> None:
        self._run: Final = run
        self._link: Final = link
        self._context: Final = context
        receiver = run.receivers.get(link)
        if receiver is None:
            state = ReceiverState(run_id=run.run_id, term=run.term, window_parcels=run.window_parcels)
            receiver = run.receivers[link] = _Receiver(state, Corruption(link, run.run_id))
        self._receiver: Final = receiver
        receiver.end_stream(_not_found(run.run_id, f"has a newer stream for {link}"))
        receiver.forget_loss()
        self._ended: Final[asyncio.Future[PipesvcError]] = asyncio.get_running_loop().create_future()
        receiver.ended = self._ended
        self._number: Final = receiver.state.opened()

    async def carry(self) -> PipesvcError | None:
        """Read and reply until the end; returns the error that the sender shall hear."""
        if self._receiver.failure is not None:
            return self._receiver.failure
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._reply())]
        waited: list[asyncio.Future[Any]] = [*tasks, self._ended]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # What gRPC raised here says that the stream is over, and then nobody is left to hear it.
            self._watch_for_loss()
            await end(tasks)
        return self._ended.result() if self._ended.done() else None

    def _watch_for_loss(self) -> None:
        """From the end of the link's newest stream on, unless the link has failed or its run is over."""
        receiver, run = self._receiver, self._run
        if receiver.ended is self._ended and receiver.failure is None:
            loop = asyncio.get_running_loop()
            receiver.loss = loop.call_later(run.lost_after_s, run.on_lost, self._link, time.time())

    async def _read(self) -> None:
        is_current = True
        while is_current and isinstance(data := await self._context.read(), bytes):
            try:
                is_current = self._take(data)
            except CorruptError as error:
                if not self._ended.done():
                    self._ended.set_result(error.with_traceback(None))
                return
            except Exception as error:
                self._failed(error)
                return

    async def _reply(self) -> None:
        receiver, door = self._receiver, self._run.door
        while True:
            receiver.is_changed.clear()
            acknowledged, credit = receiver.state.reply()
            reply = data_pb2.LinkReply(acknowledged_sequence=acknowledged, credit_parcels=credit, door=door)
            door = ""
            await self._context.write(reply.SerializeToString())
            await receiver.is_changed.wait()
            # While the sender has credit, only its memory waits for a reply, and a little later there is more to say.
            with suppress(TimeoutError):
                async with asyncio.timeout(REPLY_PAUSE_S):
                    while not receiver.state.is_urgent:
                        receiver.is_changed.clear()
                        await receiver.is_changed.wait()

    def _take(self, data: bytes) -> bool:
        """Put one frame where it belongs; False when a newer stream feeds the link, or none may."""
        receiver = self._receiver
        if receiver.failure is not None:
            return False
        header, payload = decode(data)
        receiver.corruption.check(header, payload)
        accepted = receiver.state.accept(self._number, header, payload.nbytes)
        if accepted.arrival is not Arrival.ACCEPTED:
            return accepted.arrival is Arrival.DUPLICATE
        if accepted.needs_buffer and accepted.header.total_bytes:
            receiver.view = self._run.sink.allocate(self._link, accepted.header)
        if payload.nbytes:
            receiver.view[accepted.begin : accepted.end] = payload
        if accepted.is_whole:
            receiver.corruption.passed()
            view, receiver.view = receiver.view, _NO_BYTES
            self._run.sink.deliver(self._link, accepted.header, view)
            receiver.is_changed.set()
        return True

    def _failed(self, error: Exception) -> None:
        """A frame that must not be, or a fault of the sink: the link cannot go on, and later streams hear the same."""
        if not isinstance(error, PipesvcError):
            error = PipesvcError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
        self._receiver.failure = error.at(Where(run_id=self._run.run_id))
        self._receiver.view = _NO_BYTES
        self._receiver.end_stream(self._receiver.failure)


def _not_found(run_id: str, what: str) -> PipesvcError:
    return PipesvcError(ErrorCode.RUN_NOT_FOUND, f"run {run_id} {what}", where=Where(run_id=run_id))
