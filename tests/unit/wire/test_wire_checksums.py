"""The checksum of a frame: written before the payload, read wherever it is, and absent where nobody said it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesvc.rpc.v1 import data_pb2
from pipesvc.wire.checksum import crc32c
from pipesvc.wire.credit import Arrival, ReceiverState
from pipesvc.wire.frames import FrameHeader, decode, encode
from pipesvc.wire.varints import NotCanonicalError
from tests.unit.wire.test_wire_frames import (
    FIELDS,
    TENSOR,
    by_hand,
    check_against_generated,
    either_way,
    frame_parts,
    generated,
)

U32 = st.integers(0, 2**32 - 1)


def test_it_is_the_castagnoli_one() -> None:
    assert crc32c(memoryview(b"123456789")) == 0xE3069283  # RFC 3720 and everywhere
    assert crc32c(memoryview(bytearray(32))) == 0x8A9136AA
    assert crc32c(memoryview(b"")) == 0


def test_golden_bytes() -> None:
    payload = bytes(range(1, 9))
    plain = encode(TENSOR, payload)
    assert (
        encode(replace(TENSOR, crc32c=0x01020304), payload) == plain[:-11] + b"\x8d\x01\x04\x03\x02\x01" + plain[-11:]
    )


def test_0_is_a_checksum_too() -> None:
    assert decode(encode(replace(TENSOR, crc32c=0), bytes(8)))[0].crc32c == 0
    assert decode(encode(TENSOR, bytes(8)))[0].crc32c is None


@settings(deadline=None)
@given(frame_parts(), U32)
def test_the_generated_class_reads_it_and_we_read_the_generated_class(
    parts: tuple[FrameHeader, bytes], checksum: int
) -> None:
    """Which writes it where its number belongs, behind the payload."""
    header, payload = parts
    expected = replace(header, crc32c=checksum)
    message = generated(header, payload)
    message.crc32c = checksum
    assert data_pb2.Frame.FromString(encode(expected, payload)) == message
    assert by_hand(encode(expected, payload)) == (expected, payload)
    assert either_way(message.SerializeToString()) == (expected, payload)


@settings(deadline=None)
@given(frame_parts(), U32, st.randoms(use_true_random=False))
def test_reordered_repeated_and_unknown_fields_are_read(
    parts: tuple[FrameHeader, bytes], checksum: int, random: Any
) -> None:
    header, payload = parts
    pieces = [b"\xf8\x01\x07", b"\xfd\x01abcd"]  # field 31, as a varint and as four bytes
    for name in [*FIELDS, "payload", "crc32c"]:
        values: dict[str, Any] = {"payload": payload, "crc32c": checksum}
        if name in FIELDS:
            values = {name: getattr(header, name)}
        piece = data_pb2.Frame(**{name: values[name]}).SerializeToString()
        pieces += [piece] if name == "shape" else [piece, piece]
    random.shuffle(pieces)
    assert either_way(b"".join(pieces)) == (replace(header, crc32c=checksum), payload)


def test_a_frame_that_ends_with_it_is_read_by_hand() -> None:
    header = FrameHeader(run_id="r", step=1, sequence=1, structure="null", crc32c=7)
    assert by_hand(encode(header, b"")) == (header, b"")


@pytest.mark.parametrize(
    "end", [b"\x8d", b"\x8d\x01", b"\x8d\x01abc", b"\x8d\x01abcd\x8d\x01abcd", b"\x8d\x01abcd\x10\x07"]
)
def test_other_ends_are_left_to_the_generated_parser(end: bytes) -> None:
    with pytest.raises((NotCanonicalError, IndexError)):
        by_hand(encode(replace(TENSOR, total_bytes=0), b"") + end)


@settings(deadline=None)
@given(frame_parts(), U32, st.data())
def test_damaged_frames_are_judged_as_the_generated_class_does(
    parts: tuple[FrameHeader, bytes], checksum: int, data: st.DataObject
) -> None:
    header, payload = parts
    whole = bytearray(encode(replace(header, crc32c=checksum), payload))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    check_against_generated(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def test_each_chunk_of_a_tensor_has_its_own() -> None:
    receiver = ReceiverState(run_id="r", term=1, window_parcels=1)
    stream = receiver.opened()
    first = FrameHeader(run_id="r", term=1, num_values=1, sequence=1, total_bytes=8, dtype=1, shape=(2,), crc32c=1)
    assert not receiver.accept(stream, first, 4).is_whole
    accepted = receiver.accept(stream, replace(first, chunk_offset=4, crc32c=2), 4)
    assert (accepted.arrival, accepted.is_whole) == (Arrival.ACCEPTED, True)
