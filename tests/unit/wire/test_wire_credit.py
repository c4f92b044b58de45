"""Each rule of credit and sequence by itself; `test_wire_lossy_link` runs both ends against each other."""

from __future__ import annotations

from typing import Any

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.credit import Arrival, ReceiverState, SenderState
from pipesvc.wire.frames import FrameHeader

RUN = "run"
TERM = 3
CHUNK = 3
WINDOW = 2


def tensor(num_bytes: int = 2, *, value: int = 0, num_values: int = 1, **values: Any) -> FrameHeader:
    dtype = types_pb2.ELEMENT_TYPE_UINT8
    fields = {"step": 1, "dtype": dtype, "shape": (num_bytes,), "total_bytes": num_bytes, **values}
    return FrameHeader(value=value, num_values=num_values, **fields)


def arrived(sequence: int = 1, num_bytes: int = 2, **values: Any) -> FrameHeader:
    return tensor(num_bytes, **{"run_id": RUN, "term": TERM, "sequence": sequence, **values})


def opened_sender(credit: int = 8) -> SenderState[str]:
    sender: SenderState[str] = SenderState(run_id=RUN, term=TERM, chunk_bytes=CHUNK)
    sender.replied(0, credit)
    return sender


def opened_receiver(window: int = 8) -> ReceiverState:
    receiver = ReceiverState(run_id=RUN, term=TERM, window_parcels=window)
    receiver.opened()
    return receiver


def sent(sender: SenderState[str]) -> list[tuple[int, int, int]]:
    """(sequence, offset, bytes) of all frames that may go now."""
    frames = iter(sender.next_frame, None)
    return [(header.sequence, header.chunk_offset, len(payload)) for header, payload in frames]


def test_nothing_goes_before_the_first_reply() -> None:
    sender: SenderState[str] = SenderState(run_id=RUN, term=TERM)
    sender.enqueue(tensor(), memoryview(b"ab"), "a")
    assert sender.next_frame() is None
    assert sender.replied(0, 1) == []
    assert sent(sender) == [(1, 0, 2)]


def test_credit_counts_parcels_not_tensors() -> None:
    sender = opened_sender(credit=1)
    for value in range(3):
        sender.enqueue(tensor(value=value, num_values=3), memoryview(b"ab"), "a")
    sender.enqueue(FrameHeader(step=2), memoryview(b""), "b")
    assert sent(sender) == [(1, 0, 2), (2, 0, 2), (3, 0, 2)]
    assert sender.awaits_credit
    sender.replied(0, 2)
    assert sent(sender) == [(4, 0, 0)]
    assert not sender.awaits_credit


def test_only_the_first_chunk_bears_the_structure() -> None:
    sender = opened_sender()
    sender.enqueue(tensor(7, structure="s"), memoryview(b"abcdefg"), "a")
    frames = list(iter(sender.next_frame, None))
    assert [(header.chunk_offset, header.structure, bytes(payload)) for header, payload in frames] == [
        (0, "s", b"abc"),
        (3, "", b"def"),
        (6, "", b"g"),
    ]


def test_after_a_reconnect_the_first_unacknowledged_tensor_goes_again_from_its_first_byte() -> None:
    sender = opened_sender()
    for token in "abc":
        sender.enqueue(tensor(4), memoryview(b"wxyz"), token)
    for _ in range(5):
        sender.next_frame()
    sender.closed()
    assert sender.replied(1, 8) == ["a"]
    assert sent(sender) == [(2, 0, 3), (2, 3, 1), (3, 0, 3), (3, 3, 1)]
    assert sender.replied(3, 8) == ["b", "c"]


def test_an_acknowledgement_may_overtake_the_repetition() -> None:
    sender = opened_sender()
    for token in "ab":
        sender.enqueue(tensor(4), memoryview(b"wxyz"), token)
    assert len(sent(sender)) == 4
    sender.closed()
    sender.replied(0, 8)
    sender.next_frame()
    assert sender.replied(1, 8) == ["a"]
    assert sent(sender) == [(2, 0, 3), (2, 3, 1)]


def test_old_replies_within_a_stream_are_harmless() -> None:
    sender = opened_sender()
    sender.enqueue(tensor(), memoryview(b"ab"), "a")
    sent(sender)
    assert sender.replied(1, 9) == ["a"]
    assert sender.replied(0, 8) == []
    assert sender.num_unacknowledged == 0


def test_a_receiver_that_lost_its_state_is_told_from_one_that_reconnects() -> None:
    sender = opened_sender()
    sender.enqueue(tensor(), memoryview(b"ab"), "a")
    sent(sender)
    sender.replied(1, 8)
    sender.closed()
    with pytest.raises(PipesvcError, match="has lost tensors 1 to 1") as caught:
        sender.replied(0, 8)
    assert caught.value.code is ErrorCode.LINK_LOST


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    sender = opened_sender()
    sender.enqueue(tensor(4), memoryview(b"wxyz"), "a")
    sender.next_frame()
    with pytest.raises(PipesvcError, match="tensor 1 was acknowledged, but only 0 were sent") as caught:
        sender.replied(1, 8)
    assert caught.value.code is ErrorCode.BAD_FRAME


@pytest.mark.parametrize(
    ("before", "header", "message"),
    [
        ([], tensor(value=1, num_values=2), "value 1 of 2 enqueued after nothing"),
        ([tensor(num_values=2)], tensor(num_values=2), "value 0 of 2 enqueued after value 0 of 2"),
        ([tensor(num_values=2)], tensor(value=1, num_values=2, step=2), "after value 0 of 2 of step 1, micro-batch 0"),
        ([], tensor(total_bytes=3), "2 bytes enqueued for a tensor of 3"),
    ],
)
def test_tensors_must_be_enqueued_in_the_order_of_their_parcel(
    before: list[FrameHeader], header: FrameHeader, message: str
) -> None:
    sender = opened_sender()
    for earlier in before:
        sender.enqueue(earlier, memoryview(b"ab"), "a")
    with pytest.raises(PipesvcError, match=message) as caught:
        sender.enqueue(header, memoryview(b"ab"), "b")
    assert caught.value.code is ErrorCode.INTERNAL


def test_duplicates_are_dropped() -> None:
    receiver = opened_receiver()
    assert receiver.accept(1, arrived(), 2).is_whole
    stream = receiver.opened()
    assert receiver.accept(stream, arrived(), 2).arrival is Arrival.DUPLICATE
    assert receiver.reply() == (1, 8)


def test_a_tensor_that_begins_again_keeps_its_buffer() -> None:
    receiver = opened_receiver()
    first = receiver.accept(1, arrived(num_bytes=4, structure="s"), 3)
    assert (first.needs_buffer, first.is_whole, first.begin, first.end) == (True, False, 0, 3)
    stream = receiver.opened()
    assert receiver.accept(1, arrived(num_bytes=4, chunk_offset=3), 1).arrival is Arrival.SUPERSEDED
    again = receiver.accept(stream, arrived(num_bytes=4, structure="s"), 3)
    assert (again.needs_buffer, again.begin, again.end) == (False, 0, 3)
    last = receiver.accept(stream, arrived(num_bytes=4, chunk_offset=3), 1)
    assert (last.is_whole, last.begin, last.end, last.header.structure) == (True, 3, 4, "s")


@pytest.mark.parametrize(
    ("header", "payload_bytes", "message"),
    [
        (arrived(sequence=3), 2, "tensor 3 arrived where 2 is next"),
        (arrived(sequence=2, chunk_offset=1), 1, "chunk at byte 1 where 0 is next"),
        (arrived(sequence=2), 0, "a chunk without bytes"),
        (arrived(sequence=2), 3, "3 bytes of a tensor of 2"),
        (arrived(sequence=2, run_id="other"), 2, "a frame of run 'other' on a link of run 'run'"),
        (arrived(sequence=2, value=1, num_values=2), 2, "value 1 of 2 arrived after value 0 of 1"),
    ],
)
def test_gaps_and_contradictions_are_refused(header: FrameHeader, payload_bytes: int, message: str) -> None:
    receiver = opened_receiver()
    receiver.accept(1, arrived(), 2)
    with pytest.raises(PipesvcError, match=message) as caught:
        receiver.accept(1, header, payload_bytes)
    assert caught.value.code is ErrorCode.BAD_FRAME
    assert receiver.reply() == (1, 8)


@pytest.mark.parametrize("change", [{"step": 2}, {"shape": (2, 2)}, {"requires_grad": True}, {"num_values": 2}])
def test_a_later_chunk_must_agree_with_the_first(change: dict[str, Any]) -> None:
    receiver = opened_receiver()
    receiver.accept(1, arrived(num_bytes=4), 2)
    with pytest.raises(PipesvcError, match="contradicts the tensor's first chunk"):
        receiver.accept(1, arrived(num_bytes=4, chunk_offset=2, **change), 2)


@pytest.mark.parametrize("term", [TERM - 1, TERM + 1])
def test_another_term_is_refused_by_name(term: int) -> None:
    with pytest.raises(PipesvcError, match=f"a frame of term {term} on a link of term {TERM}") as caught:
        opened_receiver().accept(1, arrived(term=term), 2)
    assert caught.value.code is ErrorCode.STALE_TERM


def test_a_sender_beyond_its_credit_is_refused() -> None:
    receiver = opened_receiver(window=1)
    receiver.accept(1, arrived(), 2)
    with pytest.raises(PipesvcError, match="parcel 2 exceeds the credit of 1"):
        receiver.accept(1, arrived(sequence=2), 2)
    assert receiver.consumed(1)
    assert receiver.reply() == (1, 2)
    assert receiver.accept(1, arrived(sequence=2), 2).is_whole


def test_more_cannot_be_consumed_than_arrived() -> None:
    receiver = opened_receiver()
    receiver.accept(1, arrived(num_values=2), 2)
    with pytest.raises(PipesvcError, match="1 parcels consumed of 0 that arrived") as caught:
        receiver.consumed(1)
    assert caught.value.code is ErrorCode.INTERNAL
    receiver.accept(1, arrived(sequence=2, value=1, num_values=2), 2)
    assert receiver.consumed(1)


def test_a_reply_is_urgent_once_the_sender_has_used_half_of_what_it_knows_of() -> None:
    receiver = opened_receiver(window=4)
    receiver.reply()
    for sequence in (1, 2):
        receiver.accept(1, arrived(sequence=sequence), 2)
        assert not receiver.is_urgent  # nothing to tell but that they have come
    receiver.consumed(1)
    assert receiver.is_urgent  # 2 are left of the 4 that it was told
    receiver.reply()
    receiver.consumed(2)
    assert not receiver.is_urgent  # 3 are left of 5
    receiver.accept(1, arrived(sequence=3), 2)
    assert receiver.is_urgent
    receiver.reply()
    assert not receiver.is_urgent


def test_with_a_window_of_one_every_credit_is_urgent() -> None:
    receiver = opened_receiver(window=1)
    for sequence in (1, 2):
        receiver.reply()
        receiver.accept(1, arrived(sequence=sequence), 2)
        receiver.consumed(sequence)
        assert receiver.is_urgent
