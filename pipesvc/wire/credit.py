"""The rules of one link, for both ends: what may be sent, what may arrive, and where to go on after a reconnect.

A gRPC stream loses whatever was in flight when it breaks, and its own flow control counts bytes where the schedule
counts micro-batches. So the ends agree on two absolute numbers, which the receiver repeats in each reply: every tensor
up to `acknowledged_sequence` has arrived whole, and parcels up to `credit_parcels` may be sent. The first reply of a
stream comes before any frame; the sender then begins at the first tensor that is not acknowledged, at its first byte.
The receiver drops what it already has. Thus each tensor is delivered once and in order, whatever breaks.

Sequence numbers count tensors (and markers: a parcel without tensors is one of them) from 1. Parcels count from 1 too.
Both classes are pure: bytes are moved by whoever calls them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Generic, NoReturn, TypeVar

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.wire.frames import CHUNK_BYTES, FrameHeader

Token = TypeVar("Token")


@dataclass(frozen=True, slots=True)
class _Queued(Generic[Token]):
    header: FrameHeader
    payload: memoryview
    parcel: int
    token: Token


class SenderState(Generic[Token]):
    """The sending end. A token is what the caller wants back when its tensor is acknowledged (to free its memory)."""

    def __init__(self, *, run_id: str, term: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._run_id: Final = run_id
        self._term: Final = term
        self._chunk_bytes: Final = chunk_bytes
        self._unacknowledged: deque[_Queued[Token]] = deque()
        self._acknowledged = 0
        self._credit = 0
        self._num_tensors = 0
        self._num_parcels = 0
        self._last: FrameHeader | None = None
        self._cursor = 1  # sequence number of the tensor that goes next, or is under way
        self._offset = 0  # bytes of it already handed out
        self._highest_sent = 0
        self._is_open = False

    def enqueue(self, header: FrameHeader, payload: memoryview, token: Token) -> int:
        """Take a tensor in the order of its parcel; returns its sequence number.

        The header needs no run, term, sequence or chunk offset: they are filled in here. The payload (a view of
        bytes) must stay as it is until the token comes back.
        """
        if header.total_bytes != len(payload):
            _fault(header, f"{len(payload)} bytes enqueued for a tensor of {header.total_bytes}")
        if not _continues(self._last, header):
            _fault(header, f"value {header.value} of {header.num_values} enqueued after {_brief(self._last)}")
        self._last = header
        self._num_parcels += header.value == 0
        self._num_tensors += 1
        filled = replace(header, run_id=self._run_id, term=self._term, sequence=self._num_tensors, chunk_offset=0)
        self._unacknowledged.append(_Queued(filled, payload, self._num_parcels, token))
        return self._num_tensors

    def closed(self) -> None:
        """The stream broke: nothing goes out until the first reply of the next one."""
        self._is_open = False

    def next_frame(self) -> tuple[FrameHeader, memoryview] | None:
        """The next frame, which counts as sent; None while there is no tensor, no credit or no open stream."""
        index = self._cursor - self._acknowledged - 1
        if not self._is_open or index >= len(self._unacknowledged):
            return None
        queued = self._unacknowledged[index]
        if queued.parcel > self._credit:
            return None
        begin, end = self._offset, min(self._offset + self._chunk_bytes, queued.header.total_bytes)
        header = queued.header
        if begin:
            header = replace(header, chunk_offset=begin, structure="")
        if end == header.total_bytes:
            self._highest_sent = max(self._highest_sent, self._cursor)
            self._cursor, self._offset = self._cursor + 1, 0
        else:
            self._offset = end
        return header, queued.payload[begin:end]

    def replied(self, acknowledged_sequence: int, credit_parcels: int) -> list[Token]:
        """A reply arrived: returns the tokens of newly acknowledged tensors, in order. The first opens the stream."""
        if acknowledged_sequence > self._highest_sent:
            text = f"tensor {acknowledged_sequence} was acknowledged, but only {self._highest_sent} were sent"
            raise PipesvcError(ErrorCode.BAD_FRAME, text, where=Where(run_id=self._run_id))
        if acknowledged_sequence < self._acknowledged and not self._is_open:
            text = (
                f"the receiver has lost tensors {acknowledged_sequence + 1} to {self._acknowledged}: it was restarted"
            )
            raise PipesvcError(ErrorCode.LINK_LOST, text, where=Where(run_id=self._run_id))
        self._credit = max(self._credit, credit_parcels)
        tokens = []
        while self._acknowledged < acknowledged_sequence:
            self._acknowledged += 1
            tokens.append(self._unacknowledged.popleft().token)
        if not self._is_open or self._cursor <= self._acknowledged:
            self._cursor, self._offset = self._acknowledged + 1, 0
        self._is_open = True
        return tokens

    @property
    def num_unacknowledged(self) -> int:
        """Tensors whose tokens have not come back, sent or not."""
        return len(self._unacknowledged)

    @property
    def awaits_credit(self) -> bool:
        """There is a tensor to send and an open stream, but the receiver must take parcels first."""
        index = self._cursor - self._acknowledged - 1
        return self._is_open and index < len(self._unacknowledged) and self._unacknowledged[index].parcel > self._credit


class Arrival(Enum):
    """What to do with a frame."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # of a tensor that is here already: drop it
    SUPERSEDED = "superseded"  # of a stream that a newer one has replaced: drop it and end that stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """The verdict on one frame. All but `arrival` matters for ACCEPTED only."""

    arrival: Arrival
    header: FrameHeader  # of the tensor's first frame: the one with the structure
    begin: int = 0
    end: int = 0
    needs_buffer: bool = False  # first frame of this tensor ever; after a reconnect its buffer is filled anew
    is_whole: bool = False  # the tensor is complete: deliver it, and send a reply


class ReceiverState:
    """The receiving end. `window_parcels` may arrive beyond those consumed."""

    def __init__(self, *, run_id: str, term: int, window_parcels: int) -> None:
        self._run_id: Final = run_id
        self._term: Final = term
        self._window: Final = window_parcels
        self._acknowledged = 0
        self._num_parcels = 0  # begun
        self._num_whole_parcels = 0
        self._num_consumed = 0
        self._told_credit = 0
        self._partial: FrameHeader | None = None  # first header of the tensor under way
        self._partial_bytes = 0
        self._last: FrameHeader | None = None  # of the last whole tensor
        self._stream = 0

    def opened(self) -> int:
        """A stream for this link was opened and replaces any other; returns its number. Send `reply()` at once."""
        self._stream += 1
        self._partial_bytes = 0
        return self._stream

    def reply(self) -> tuple[int, int]:
        """(acknowledged_sequence, credit_parcels) as they are now, to be sent."""
        self._told_credit = self._num_consumed + self._window
        return self._acknowledged, self._told_credit

    @property
    def is_urgent(self) -> bool:
        """Whether the sender should hear at once: it has used half of the credit it knows of, and there is more."""
        has_more = self._num_consumed + self._window > self._told_credit
        return has_more and self._told_credit - self._num_parcels <= self._window // 2

    def consumed(self, num_parcels: int) -> bool:
        """So many parcels of this link have been taken since the run began; True when that opens credit."""
        if num_parcels > self._num_whole_parcels:
            text = f"{num_parcels} parcels consumed of {self._num_whole_parcels} that arrived"
            raise PipesvcError(ErrorCode.INTERNAL, text, where=Where(run_id=self._run_id))
        is_more = num_parcels > self._num_consumed
        self._num_consumed = max(self._num_consumed, num_parcels)
        return is_more

    def accept(self, stream: int, header: FrameHeader, payload_bytes: int) -> Accepted:
        """Judge a frame of a stream, and count it as arrived when accepted. Raises for a frame that must not be."""
        if stream != self._stream:
            return Accepted(arrival=Arrival.SUPERSEDED, header=header)
        self._check_run(header)
        if header.sequence <= self._acknowledged:
            return Accepted(arrival=Arrival.DUPLICATE, header=header)
        if header.sequence != self._acknowledged + 1:
            _refuse(header, f"tensor {header.sequence} arrived where {self._acknowledged + 1} is next")
        if header.chunk_offset != self._partial_bytes:
            _refuse(header, f"chunk at byte {header.chunk_offset} where {self._partial_bytes} is next")
        if payload_bytes == 0 and header.total_bytes:
            _refuse(header, "a chunk without bytes")
        needs_buffer = self._partial is None
        first = self._begin(header) if self._partial is None else self._go_on(self._partial, header)
        begin, self._partial_bytes = self._partial_bytes, self._partial_bytes + payload_bytes
        if self._partial_bytes > header.total_bytes:
            _refuse(header, f"{self._partial_bytes} bytes of a tensor of {header.total_bytes}")
        is_whole = self._partial_bytes == header.total_bytes
        end = self._partial_bytes
        if is_whole:
            self._finish(first)
        return Accepted(
            arrival=Arrival.ACCEPTED, header=first, begin=begin, end=end, needs_buffer=needs_buffer, is_whole=is_whole
        )

    def _check_run(self, header: FrameHeader) -> None:
        if header.run_id != self._run_id:
            _refuse(header, f"a frame of run {header.run_id!r} on a link of run {self._run_id!r}")
        if header.term != self._term:
            text = f"a frame of term {header.term} on a link of term {self._term}"
            raise PipesvcError(ErrorCode.STALE_TERM, text, where=_where(header))

    def _begin(self, header: FrameHeader) -> FrameHeader:
        if not _continues(self._last, header):
            _refuse(header, f"value {header.value} of {header.num_values} arrived after {_brief(self._last)}")
        if header.value == 0:
            credit = self._num_consumed + self._window
            if self._num_parcels >= credit:
                _refuse(header, f"parcel {self._num_parcels + 1} exceeds the credit of {credit}")
            self._num_parcels += 1
        self._partial = header
        return header

    def _go_on(self, first: FrameHeader, header: FrameHeader) -> FrameHeader:
        """A later chunk, or the first chunk again after a reconnect: it must say the same as the first one did."""
        if replace(header, chunk_offset=0, structure=first.structure, crc32c=first.crc32c) != first:
            _refuse(header, f"a chunk of tensor {header.sequence} contradicts the tensor's first chunk")
        return first

    def _finish(self, header: FrameHeader) -> None:
        self._acknowledged += 1
        self._last, self._partial, self._partial_bytes = header, None, 0
        self._num_whole_parcels += header.ends_parcel


def _continues(last: FrameHeader | None, header: FrameHeader) -> bool:
    """The next tensor of the parcel under way, or the first of a new one when that is complete."""
    if last is None or last.ends_parcel:
        return header.value == 0
    place = (last.step, last.micro_batch, last.num_values, last.value + 1)
    return place == (header.step, header.micro_batch, header.num_values, header.value)


def _brief(last: FrameHeader | None) -> str:
    if last is None:
        return "nothing"
    return f"value {last.value} of {last.num_values} of step {last.step}, micro-batch {last.micro_batch}"


def _where(header: FrameHeader) -> Where:
    return Where(run_id=header.run_id, step=header.step, micro_batch=header.micro_batch)


def _refuse(header: FrameHeader, message: str) -> NoReturn:
    raise PipesvcError(ErrorCode.BAD_FRAME, message, where=_where(header))


def _fault(header: FrameHeader, message: str) -> NoReturn:
    raise PipesvcError(ErrorCode.INTERNAL, message, where=_where(header))
