"""Both ends of a link against each other over a stream that breaks anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.credit import Accepted, Arrival, ReceiverState, SenderState
from pipesvc.wire.frames import FrameHeader, decode, encode

RUN = "run"
TERM = 3
CHUNK = 3
WINDOW = 2


def tensor(num_bytes: int = 2, *, value: int = 0, num_values: int = 1, **values: Any) -> FrameHeader:
    dtype = types_pb2.ELEMENT_TYPE_UINT8
    fields = {"step": 1, "dtype": dtype, "shape": (num_bytes,), "total_bytes": num_bytes, **values}
    return FrameHeader(value=value, num_values=num_values, **fields)


class LossyLink(RuleBasedStateMachine):
    """Frames and replies in flight are lost with each cut; frames of the old stream may still come late."""

    @initialize()
    def set_up(self) -> None:
        self.sender: SenderState[int] = SenderState(run_id=RUN, term=TERM, chunk_bytes=CHUNK)
        self.receiver = ReceiverState(run_id=RUN, term=TERM, window_parcels=WINDOW)
        self.enqueued: list[tuple[FrameHeader, bytes]] = []
        self.parcel_of_sequence: dict[int, int] = {}
        self.num_parcels = 0
        self.tokens: list[int] = []
        self.delivered: list[tuple[FrameHeader, bytes]] = []
        self.num_delivered_parcels = 0
        self.num_consumed = 0
        self.known_credit = 0
        self.buffer: bytearray | None = None
        self.frames: list[bytes] = []
        self.late: list[tuple[int, bytes]] = []
        self.stream = 0
        self.connect()

    def connect(self) -> None:
        self.stream = self.receiver.opened()
        self.frames = []
        self.replies = [self.receiver.reply()]

    @rule(sizes=st.lists(st.none() | st.integers(0, 7), max_size=3), micro_batch=st.integers(0, 3))
    def enqueue(self, sizes: list[int | None], micro_batch: int) -> None:
        self.num_parcels += 1
        place = {"step": self.num_parcels, "micro_batch": micro_batch}
        headers = [FrameHeader(structure="null", **place)]  # type: ignore[arg-type]
        if sizes:
            headers = [
                tensor(
                    size or 0,
                    value=i,
                    num_values=len(sizes),
                    is_no_gradient=size is None,
                    structure="s" * (i == 0),
                    **place,
                )
                for i, size in enumerate(sizes)
            ]
        for header in headers:
            number = len(self.enqueued) + 1
            payload = bytes((number + i) % 256 for i in range(header.total_bytes))
            assert self.sender.enqueue(header, memoryview(payload), number) == number
            self.enqueued.append((replace(header, run_id=RUN, term=TERM, sequence=number), payload))
            self.parcel_of_sequence[number] = self.num_parcels

    @rule(num_frames=st.integers(1, 6))
    def send(self, num_frames: int) -> None:
        for _ in range(num_frames):
            frame = self.sender.next_frame()
            if frame is None:
                return
            assert self.parcel_of_sequence[frame[0].sequence] <= self.known_credit
            assert len(frame[1]) <= CHUNK
            self.frames.append(encode(*frame))

    @precondition(lambda self: self.frames)
    @rule(num_frames=st.integers(1, 6))
    def arrive(self, num_frames: int) -> None:
        for data in self.frames[:num_frames]:
            header, payload = decode(data)
            accepted = self.receiver.accept(self.stream, header, len(payload))
            assert accepted.arrival is Arrival.ACCEPTED
            self.write(accepted, payload)
        del self.frames[:num_frames]

    def write(self, accepted: Accepted, payload: memoryview) -> None:
        if accepted.needs_buffer:
            assert self.buffer is None
            self.buffer = bytearray(accepted.header.total_bytes)
        assert self.buffer is not None
        self.buffer[accepted.begin : accepted.end] = payload
        if accepted.is_whole:
            self.delivered.append((accepted.header, bytes(self.buffer)))
            self.num_delivered_parcels += accepted.header.ends_parcel
            self.buffer = None
            self.replies.append(self.receiver.reply())

    @precondition(lambda self: self.late)
    @rule()
    def arrive_late(self) -> None:
        stream, data = self.late.pop()
        header, payload = decode(data)
        assert self.receiver.accept(stream, header, len(payload)).arrival is Arrival.SUPERSEDED

    @precondition(lambda self: self.replies)
    @rule()
    def reply(self) -> None:
        acknowledged, credit = self.replies.pop(0)
        self.known_credit = max(self.known_credit, credit)
        self.tokens += self.sender.replied(acknowledged, credit)

    @precondition(lambda self: self.num_consumed < self.num_delivered_parcels)
    @rule()
    def consume(self) -> None:
        self.num_consumed += 1
        assert self.receiver.consumed(self.num_consumed)
        assert not self.receiver.consumed(self.num_consumed)
        self.replies.append(self.receiver.reply())

    @rule()
    def cut(self) -> None:
        self.late += [(self.stream, data) for data in self.frames]
        self.sender.closed()
        assert self.sender.next_frame() is None
        self.connect()

    @invariant()
    def nothing_is_lost_doubled_or_out_of_order(self) -> None:
        assert self.delivered == self.enqueued[: len(self.delivered)]
        assert self.tokens == list(range(1, len(self.tokens) + 1))
        assert len(self.tokens) <= len(self.delivered)
        assert self.sender.num_unacknowledged == len(self.enqueued) - len(self.tokens)
        assert self.num_delivered_parcels <= self.num_consumed + WINDOW

    def teardown(self) -> None:
        if not hasattr(self, "sender"):
            return
        for _ in range(20 * (1 + len(self.enqueued))):
            self.send(100)
            if self.frames:
                self.arrive(100)
            while self.replies:
                self.reply()
            while self.num_consumed < self.num_delivered_parcels:
                self.consume()
        assert self.delivered == self.enqueued
        assert self.tokens == list(range(1, len(self.enqueued) + 1))
        assert self.sender.num_unacknowledged == 0
        assert not self.sender.awaits_credit


LossyLink.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLossyLink = LossyLink.TestCase
