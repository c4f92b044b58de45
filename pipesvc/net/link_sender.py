"""The sending end of a link: tensors in, one long-lived stream out, whatever happens to the connection.

A unary call per tensor costs a round trip and loses its place when the connection breaks; a bare stream loses all that
was under way. Here `wire.credit` remembers what was acknowledged, and this module does the moving: it dials, writes
what the receiver's credit allows, and after a break dials again and goes on. Only when that fails for too long does the
run hear of it.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeAlias

import grpc
import grpc.aio

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.net import options
from pipesvc.net.addresses import Address
from pipesvc.net.channels import Metadata, aio_channel, auth_metadata
from pipesvc.net.ending import end, forget_frames
from pipesvc.net.link_counts import LinkCounts, LinkTally
from pipesvc.net.outgoing import Acknowledged, OutgoingTensor
from pipesvc.net.reports import report_of, status_and_text
from pipesvc.rpc.v1 import data_pb2
from pipesvc.wire.checksum import crc32c
from pipesvc.wire.credit import SenderState
from pipesvc.wire.frames import FrameHeader, encode
from pipesvc.wire.links import Link

CARRY: Final = "/pipesvc.rpc.v1.LinkService/Carry"
# Pauses between attempts to dial; the first break of a good link costs only the shortest.
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
# For the reader to learn why a write failed.
_STATUS_WAIT_S: Final = 2.0

_Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


class LinkSender:
    """Starts dialling at once. `on_failed` is called at most once; after it, and after `close`, tensors are dropped.

    `on_door` is called once, if the receiver says where a sender on its own host may find a shorter way, `on_awaiting`
    whenever a tensor begins or ceases to wait for credit.
    """

    def __init__(
        self,
        *,
        link: Link,
        run_id: str,
        term: int,
        address: Address,
        token: str,
        on_failed: Callable[[PipesvcError], None],
        on_door: Callable[[str], None] | None = None,
        on_awaiting: Callable[[bool], None] | None = None,
        lost_after_s: float = 10.0,
        has_checksums: bool = True,
    ) -> None:
        self._link: Final = link
        self._run_id: Final = run_id
        self._term: Final = term
        self._address: Final = address
        self._name: Final = f"link {link} to {address}"
        self._on_failed: Final = on_failed
        self._on_door = on_door
        self._on_awaiting: Final = on_awaiting
        self._awaits_credit = False
        self._lost_after_s: Final = lost_after_s
        self._has_checksums: Final = has_checksums
        self._metadata: Final[Metadata] = (*link_metadata(link, run_id, term), *auth_metadata(token))
        self._state = SenderState[Acknowledged](run_id=run_id, term=term)
        self._channel: Final = aio_channel(address, options.DATA_CHANNEL)
        self._open: Final[Callable[..., _Call]] = self._channel.stream_stream(CARRY, None, None)
        self._wake: Final = asyncio.Event()
        self._emptied: Final = asyncio.Event()
        self._emptied.set()
        self._is_connected = False
        self._was_connected = False
        self._is_ended = False
        self._tally: Final = LinkTally()
        self._task: Final = asyncio.get_running_loop().create_task(self._run(), name=f"link {link} of {run_id}")

    @property
    def counts(self) -> LinkCounts:
        return self._tally.counts

    @property
    def num_unacknowledged(self) -> int:
        """Tensors handed in and not known to have arrived."""
        return self._state.num_unacknowledged

    @property
    def awaiting(self) -> str:
        """What the link waits for, in words; "" when it waits for nothing but tensors."""
        if self._is_ended:
            return ""
        if not self._is_connected:
            return f"a connection to {self._address}"
        return f"credit of {self._link} from {self._address}" if self._state.awaits_credit else ""

    def send(self, tensor: OutgoingTensor) -> None:
        """Enqueue; the receiver's credit decides when it goes."""
        if self._is_ended:
            return
        header = FrameHeader(
            step=tensor.step,
            micro_batch=tensor.micro_batch,
            value=tensor.value,
            num_values=tensor.num_values,
            total_bytes=tensor.view.nbytes,
            dtype=tensor.element_type,
            shape=tensor.shape,
            requires_grad=tensor.requires_grad,
            is_no_gradient=tensor.is_no_gradient,
            codec=tensor.codec,
            structure=tensor.structure,
        )
        self._state.enqueue(header, tensor.view, tensor.on_acknowledged)
        self._tally.erred(tensor.relative_error)
        self._emptied.clear()
        self._wake.set()

    async def drain(self, timeout_s: float) -> None:
        """Wait until all that was handed in has arrived, at most so long. Returns at once on a failed link."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._emptied.wait()
        except TimeoutError:
            message = f"{self._name}: {self.num_unacknowledged} tensors did not arrive within {timeout_s:g} s"
            raise PipesvcError(ErrorCode.TIMED_OUT, message, where=Where(run_id=self._run_id)) from None

    async def close(self) -> None:
        """End at once; what is not acknowledged stays so, and no callback comes any more."""
        self._end()
        await end([self._task])
        await self._channel.close(None)

    def _end(self) -> None:
        self._is_ended = True
        # Lets go of the queued views, so that their memory can be unmapped.
        self._state = SenderState[Acknowledged](run_id=self._run_id, term=self._term)
        self._note_credit()
        self._emptied.set()

    async def _run(self) -> None:
        try:
            failure = await self._keep_carrying()
        except PipesvcError as error:
            known = error.details
            failure = PipesvcError(error.code, f"{self._name}: {known.message}", advice=known.advice, where=known.where)
        except Exception as error:
            failure = PipesvcError(ErrorCode.INTERNAL, f"{self._name}: {type(error).__name__}: {error}")
        if self._is_ended:
            return
        self._end()
        self._on_failed(failure.at(Where(run_id=self._run_id)))

    async def _keep_carrying(self) -> PipesvcError:
        """Dial until the link is lost for too long; raises what dialling again would not cure."""
        clock = asyncio.get_running_loop().time
        deadline, pause_s = clock() + self._lost_after_s, _FIRST_PAUSE_S
        while True:
            try:
                await self._carry(max(deadline - clock(), 0.001))
                why = "the receiver ended the stream"
            except TimeoutError as error:
                why = "no answer"
                forget_frames(error)
            except grpc.aio.AioRpcError as error:
                why = _curable(error)
                forget_frames(error)
            if self._is_connected:
                self._is_connected = False
                deadline, pause_s = clock() + self._lost_after_s, _FIRST_PAUSE_S
            remaining_s = deadline - clock()
            if remaining_s <= 0:
                verb = "did not come back" if self._was_connected else "could not be opened"
                return PipesvcError(
                    ErrorCode.LINK_LOST,
                    f"{self._name} {verb} within {self._lost_after_s:g} s: {why}",
                    advice="See whether the worker at that address runs and can be reached from this host",
                )
            await asyncio.sleep(min(pause_s, remaining_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _carry(self, timeout_s: float) -> None:
        """One stream, until it ends or breaks; the first reply must come within the time."""
        call = self._open(metadata=self._metadata)
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(timeout_s):
                first = await call.read()
            if not isinstance(first, bytes):
                return
            self._replied(first)
            self._is_connected = self._was_connected = True
            reader, writer = asyncio.create_task(self._read(call)), asyncio.create_task(self._write(call))
            tasks = [reader, writer]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                await asyncio.wait([reader], timeout=_STATUS_WAIT_S)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            self._state.closed()
            self._note_credit()
            call.cancel()
            await end(tasks)

    async def _read(self, call: _Call) -> None:
        while isinstance(reply := await call.read(), bytes):
            self._replied(reply)

    async def _write(self, call: _Call) -> None:
        # A write says only that the call is over; why, the reader learns.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                frame = self._next_frame()
                if frame is None:
                    self._note_credit()
                    self._wake.clear()
                    await self._wake.wait()
                else:
                    await call.write(frame)

    def _next_frame(self) -> bytes | None:
        """The next frame in bytes. Leaves no view behind: an acknowledged tensor's memory may be unmapped at once."""
        following = self._state.next_frame()
        if following is None:
            return None
        header, payload = following
        if self._has_checksums and payload.nbytes:
            header = replace(header, crc32c=crc32c(payload))
        frame = encode(header, payload)
        self._tally.sent(header, payload.nbytes, len(frame))
        return frame

    def _replied(self, data: bytes) -> None:
        reply = data_pb2.LinkReply.FromString(data)
        for on_acknowledged in self._state.replied(reply.acknowledged_sequence, reply.credit_parcels):
            on_acknowledged()
        if reply.door and self._on_door is not None:
            self._on_door(reply.door)
            self._on_door = None
        self._note_credit()
        if self._state.num_unacknowledged == 0:
            self._emptied.set()
        self._wake.set()

    def _note_credit(self) -> None:
        if self._awaits_credit != self._state.awaits_credit:
            self._awaits_credit = not self._awaits_credit
            if self._on_awaiting is not None:
                self._on_awaiting(self._awaits_credit)


def link_metadata(link: Link, run_id: str, term: int) -> Metadata:
    """The request metadata that names a link, without the token."""
    return (("pipesvc-run", run_id), ("pipesvc-term", str(term)), ("pipesvc-link", str(link)))


def _curable(error: grpc.aio.AioRpcError) -> str:
    """Why the stream broke, if dialling again may help; raises if the receiver refused the link."""
    report = report_of(error)
    # The receiver's own part of the run may begin a moment later than this one.
    if report is not None and report.code is not ErrorCode.RUN_NOT_FOUND:
        raise PipesvcError.of(report)
    code, text = status_and_text(error)
    return f"{code.name}: {text}"
