"""The worker's one stream to the coordinator: dialled, registered, kept alive by beats, dialled again when it breaks.

The worker dials, so it may stand behind any firewall. What it has to say waits in an outbox that outlives a broken
stream: a message leaves it only when gRPC has taken it, so a short break loses nothing that was not already on the
way. Beats are never queued: each is made when it is due, ahead of everything that waits. When the outbox grows
faster than the stream carries it off (a user who prints in a loop, weights on their way), the children are not read
any more until it has shrunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import channels, reports
from pipesvc.net.addresses import Address
from pipesvc.net.ending import end
from pipesvc.rpc.v1 import worker_pb2, worker_pb2_grpc

WELCOME_WAIT_S: Final = 10.0
FIRST_BACKOFF_S: Final = 0.1
LONGEST_BACKOFF_S: Final = 2.0
OUTBOX_HIGH_BYTES: Final = 8 * 1024 * 1024
OUTBOX_LOW_BYTES: Final = 4 * 1024 * 1024

# Until the first welcome says otherwise.
DEFAULT_BEAT_TIMEOUT_S: Final = 3.0

# Nothing that the worker does by itself makes the coordinator change its mind about these.
REFUSALS: Final = frozenset(
    {ErrorCode.WORKER_NAME_TAKEN, ErrorCode.UNAUTHENTICATED, ErrorCode.WIRE_MISMATCH, ErrorCode.INVALID_JOB}
)


class Outbox:
    """What waits to be sent, in order, and a signal when it is too much."""

    def __init__(self, on_pressure: Callable[[bool], None]) -> None:
        self._queue: deque[tuple[worker_pb2.AttachRequest, int]] = deque()
        self._num_bytes = 0
        self._is_pressed = False
        self._on_pressure = on_pressure
        self._filled = asyncio.Event()

    def put(self, request: worker_pb2.AttachRequest) -> None:
        size = request.ByteSize()
        self._queue.append((request, size))
        self._num_bytes += size
        self._filled.set()
        if self._num_bytes > OUTBOX_HIGH_BYTES and not self._is_pressed:
            self._is_pressed = True
            self._on_pressure(True)

    def first(self) -> worker_pb2.AttachRequest | None:
        return self._queue[0][0] if self._queue else None

    def drop_first(self) -> None:
        _, size = self._queue.popleft()
        self._num_bytes -= size
        if self._num_bytes < OUTBOX_LOW_BYTES and self._is_pressed:
            self._is_pressed = False
            self._on_pressure(False)

    def clear(self) -> None:
        while self._queue:
            self.drop_first()

    async def emptied(self, limit_s: float) -> None:
        """Until nothing waits, at most so long."""
        deadline = time.monotonic() + limit_s
        while self._queue and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def wait(self, limit_s: float) -> None:
        """Until something is there, at most so long."""
        if not self._queue:
            self._filled.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._filled.wait(), limit_s)


class Host(Protocol):
    """What the session speaks for: the agent."""

    def beat(self) -> worker_pb2.Beat: ...

    def welcomed(self, welcome: worker_pb2.Welcome) -> None:
        """A stream is up. Comes before the first `command` of it."""

    def command(self, response: worker_pb2.AttachResponse) -> None: ...

    def lost(self, why: str) -> None:
        """The coordinator has been away for longer than the beat timeout."""

    def say(self, line: str) -> None:
        """Tell the person in front of the terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dial:
    """Where the coordinator is, how to authenticate there, and how long to look for it."""

    address: Address
    find_token: Callable[[], str]
    wait_s: float


class Session:
    """`run` ends by an exception only: a refusal, or COORDINATOR_ABSENT or COORDINATOR_LOST after the wait.

    `register` is called in a thread, before each dial.
    """

    def __init__(self, dial: Dial, register: Callable[[], worker_pb2.Register], host: Host, outbox: Outbox) -> None:
        self._dial = dial
        self._register = register
        self._host = host
        self._outbox = outbox
        self._beat_interval_s = 0.5
        self._beat_timeout_s = DEFAULT_BEAT_TIMEOUT_S
        self._was_connected = False
        self._is_welcomed = False
        self._token = ""
        self._lost_timer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        looking_since = time.monotonic()
        has_told = was_internal = False
        try:
            while True:
                error = await self._attach()
                if error.code in REFUSALS and not self._has_new_token(error):
                    raise error
                if self._is_welcomed:
                    backoff_s, looking_since, has_told = FIRST_BACKOFF_S, time.monotonic(), False
                if time.monotonic() - looking_since + backoff_s > self._dial.wait_s:
                    raise error
                # grpc.aio says INTERNAL of a stream that is refused while its first message is written: the next dial
                # hears the refusal itself.
                is_riddle = error.code is ErrorCode.INTERNAL and not was_internal
                was_internal = error.code is ErrorCode.INTERNAL
                if not has_told and not is_riddle:
                    has_told = True
                    self._host.say(f"{error.details.message}; dialling for up to {self._dial.wait_s:g} s")
                await asyncio.sleep(backoff_s)
                backoff_s = min(LONGEST_BACKOFF_S, backoff_s * 2)
        finally:
            await self._end_timer()

    def _has_new_token(self, error: PipesvcError) -> bool:
        """A coordinator that starts just now may write its token after this worker has looked for it."""
        return error.code is ErrorCode.UNAUTHENTICATED and self._dial.find_token() != self._token

    async def _attach(self) -> PipesvcError:
        """One stream from the dial to its end; gives the reason of the end."""
        self._is_welcomed = False
        try:
            register = await asyncio.to_thread(self._register)
            self._token = self._dial.find_token()
            metadata = channels.auth_metadata(self._token)
            async with channels.aio_channel(self._dial.address) as channel:
                stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
                call = stub.Attach(metadata=metadata)
                try:
                    await self._converse(call, register)
                finally:
                    call.cancel()
        except grpc.RpcError as error:
            return reports.from_rpc_error(error, address=self._dial.address, was_connected=self._was_connected)
        except PipesvcError as error:
            return error
        finally:
            if self._is_welcomed:
                self._lost_timer = asyncio.create_task(self._report_lost(), name="coordinator lost timer")
        return PipesvcError(ErrorCode.COORDINATOR_LOST, f"the coordinator at {self._dial.address} ended the connection")

    async def _converse(self, call: Any, register: worker_pb2.Register) -> None:
        responses: AsyncIterator[worker_pb2.AttachResponse] = aiter(call)
        welcome = await self._greet(call, register, responses)
        self._beat_interval_s = welcome.beat_interval_ms / 1000 or self._beat_interval_s
        self._beat_timeout_s = welcome.beat_timeout_ms / 1000 or self._beat_timeout_s
        self._is_welcomed = self._was_connected = True
        await self._end_timer()
        self._host.welcomed(welcome)
        writer = asyncio.create_task(self._write(call), name="session writer")
        try:
            async for response in responses:
                self._host.command(response)
        finally:
            await end([writer])

    async def _greet(
        self, call: Any, register: worker_pb2.Register, responses: AsyncIterator[worker_pb2.AttachResponse]
    ) -> worker_pb2.Welcome:
        try:
            async with asyncio.timeout(WELCOME_WAIT_S):
                # A write to a call that has failed raises InvalidStateError; the read knows the reason.
                with contextlib.suppress(asyncio.InvalidStateError):
                    await call.write(worker_pb2.AttachRequest(register=register))
                first = await anext(responses)
        except TimeoutError:
            text = f"the coordinator at {self._dial.address} does not answer within {WELCOME_WAIT_S:g} s"
            raise PipesvcError(ErrorCode.COORDINATOR_ABSENT, text) from None
        except StopAsyncIteration:
            text = f"the coordinator at {self._dial.address} ended the connection without a word"
            raise PipesvcError(ErrorCode.COORDINATOR_ABSENT, text) from None
        if first.WhichOneof("message") != "welcome":
            raise PipesvcError(ErrorCode.WIRE_MISMATCH, f"{self._dial.address} answered something else than a welcome")
        return first.welcome

    async def _write(self, call: Any) -> None:
        """The only writer of the stream: beats when they are due, else what waits."""
        beat_due = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= beat_due:
                beat_due = now + self._beat_interval_s
                await call.write(worker_pb2.AttachRequest(beat=self._host.beat()))
            request = self._outbox.first()
            if request is not None:
                await call.write(request)
                self._outbox.drop_first()
            else:
                await self._outbox.wait(beat_due - time.monotonic())

    async def _report_lost(self) -> None:
        await asyncio.sleep(self._beat_timeout_s)
        self._host.lost(f"the coordinator at {self._dial.address} has been away for {self._beat_timeout_s:g} s")

    async def _end_timer(self) -> None:
        timer, self._lost_timer = self._lost_timer, None
        if timer is not None:
            if not timer.done():
                timer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await timer
