"""Hand-made frames are protobuf: equal to the generated class byte for byte, both ways, whatever the layout."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import data_pb2, types_pb2
from pipesvc.wire import frames
from pipesvc.wire.elements import ELEMENT_BYTES, total_bytes
from pipesvc.wire.frames import FrameHeader, decode, encode
from pipesvc.wire.varints import NotCanonicalError

FIELDS = [
    "run_id", "term", "step", "micro_batch", "value", "num_values", "sequence", "chunk_offset", "total_bytes", "dtype",
    "shape", "requires_grad", "is_no_gradient", "codec", "structure",
]  # fmt: skip

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def generated(header: FrameHeader, payload: bytes) -> data_pb2.Frame:
    values: dict[str, Any] = {name: getattr(header, name) for name in FIELDS}
    return data_pb2.Frame(payload=payload, **values)


def by_hand(data: bytes) -> tuple[FrameHeader, bytes]:
    """What the reader by hand makes of it; raises when it leaves the frame to the generated parser."""
    header, payload = frames._decode_canonical(data)
    return header, bytes(payload)


def either_way(data: bytes) -> tuple[FrameHeader, bytes]:
    header, payload = decode(data)
    return header, bytes(payload)


@st.composite
def frame_parts(draw: st.DrawFn) -> tuple[FrameHeader, bytes]:
    """A header that is consistent with its payload."""
    dtype = draw(st.sampled_from(sorted(ELEMENT_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 300), max_size=4)))
    total = total_bytes(dtype, shape)
    offset = draw(st.integers(0, total))
    payload = draw(st.binary(max_size=min(64, total - offset)))
    num_values = draw(st.integers(1, 2**32 - 1))
    header = FrameHeader(
        run_id=draw(st.text(max_size=40)),
        term=draw(U64),
        step=draw(U64),
        micro_batch=draw(U32),
        value=draw(st.integers(0, num_values - 1)),
        num_values=num_values,
        sequence=draw(st.integers(1, 2**64 - 1)),
        chunk_offset=offset,
        total_bytes=total,
        dtype=dtype,
        shape=shape,
        requires_grad=draw(st.booleans()),
        structure=draw(st.text(max_size=40)),
    )
    return header, payload


TENSOR = FrameHeader(
    run_id="r1",
    term=2,
    step=300,
    micro_batch=1,
    value=0,
    num_values=2,
    sequence=5,
    total_bytes=8,
    dtype=types_pb2.ELEMENT_TYPE_FLOAT32,
    shape=(1, 2),
    requires_grad=True,
    structure='["tensor"]',
)


def test_golden_bytes() -> None:
    golden = (
        "0a027231" "1002" "18ac02" "2001" "3002" "3805" "4808" "5001" "5a020102" "6001" "7001"
        "7a0a" + b'["tensor"]'.hex() + "820108" + "0102030405060708"
    )  # fmt: skip
    assert encode(TENSOR, bytes(range(1, 9))).hex() == golden


def test_all_fields_of_the_contract_are_covered() -> None:
    assert [field.name for field in data_pb2.Frame.DESCRIPTOR.fields] == [*FIELDS, "payload", "crc32c"]
    assert set(FrameHeader.__dataclass_fields__) == {*FIELDS, "crc32c"}


@settings(deadline=None)
@given(frame_parts())
def test_bytes_are_those_of_the_generated_class(parts: tuple[FrameHeader, bytes]) -> None:
    header, payload = parts
    assert encode(header, payload) == generated(header, payload).SerializeToString(deterministic=True)


@settings(deadline=None)
@given(frame_parts())
def test_round_trip_by_hand_without_the_generated_parser(parts: tuple[FrameHeader, bytes]) -> None:
    header, payload = parts
    assert by_hand(encode(header, payload)) == (header, payload)
    assert either_way(encode(header, payload)) == (header, payload)


@settings(deadline=None)
@given(frame_parts())
def test_frames_of_the_generated_class_are_read_by_hand(parts: tuple[FrameHeader, bytes]) -> None:
    header, payload = parts
    assert by_hand(generated(header, payload).SerializeToString()) == (header, payload)


@settings(deadline=None)
@given(frame_parts(), st.randoms(use_true_random=False))
def test_reordered_and_split_fields_are_read_through_the_generated_parser(
    parts: tuple[FrameHeader, bytes], random: Any
) -> None:
    header, payload = parts
    pieces = []
    for name in [*FIELDS, "payload"]:
        values: dict[str, Any] = {name: payload if name == "payload" else getattr(header, name)}
        pieces.append(data_pb2.Frame(**values).SerializeToString())
    random.shuffle(pieces)
    assert either_way(b"".join(pieces)) == (header, payload)


def unpacked_shape(*dimensions: int) -> bytes:
    return b"".join(bytes([11 << 3, dimension]) for dimension in dimensions)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\x18\x07", b""),  # step twice: the last one counts
        (b"", b"\xf8\x01\x07"),  # field 31, a varint, after the payload
        (b"\xfa\x01\x03abc", b""),  # field 31, bytes, before all
        (b"\xfd\x01abcd", b""),  # field 31, four bytes
        (b"\x6a\x01x", b""),  # is_no_gradient with the wire type of bytes: unknown to a parser, so kept apart
    ],
)
def test_repeated_and_unknown_fields_are_valid(before: bytes, after: bytes) -> None:
    payload = bytes(range(8))
    assert either_way(before + encode(TENSOR, payload) + after) == (TENSOR, payload)


def test_a_shape_that_is_not_packed_is_valid() -> None:
    packed = encode(TENSOR, bytes(8))
    unpacked = packed.replace(b"\x5a\x02\x01\x02", unpacked_shape(1, 2))
    assert unpacked != packed
    assert decode(unpacked)[0] == TENSOR


def test_a_shape_in_pieces_is_put_together_and_of_a_repeated_text_the_last_counts() -> None:
    whole = encode(TENSOR, bytes(8))
    split = whole.replace(b"\x5a\x02\x01\x02", b"\x5a\x01\x01\x5a\x01\x02")
    assert split != whole
    assert decode(split)[0] == TENSOR
    assert decode(b"\x0a\x03old" + whole)[0] == TENSOR


def test_the_payload_is_a_view_of_the_bytes_that_came() -> None:
    data = encode(TENSOR, bytes(8))
    payload = decode(data)[1]
    assert payload.obj is data
    assert payload.readonly


def test_a_parcel_without_tensors_and_a_missing_gradient_are_small_frames() -> None:
    empty = FrameHeader(run_id="r", step=1, sequence=1, structure="null")
    missing = FrameHeader(run_id="r", step=1, num_values=1, sequence=2, is_no_gradient=True)
    for header in (empty, missing):
        assert header.is_marker
        assert header.ends_parcel
        assert either_way(encode(header, b"")) == (header, b"")


def change(**values: Any) -> bytes:
    fields: dict[str, Any] = {name: getattr(TENSOR, name) for name in FIELDS}
    return data_pb2.Frame(**{"payload": bytes(8), **fields, **values}).SerializeToString()


@pytest.mark.parametrize("number", [22, 99, 2**31 - 1, -1])
def test_n29_an_unknown_element_type_is_refused_by_its_number(number: int) -> None:
    with pytest.raises(PipesvcError, match=f"unknown element type number {number} ") as caught:
        decode(change(dtype=number))
    assert caught.value.code is ErrorCode.BAD_FRAME
    assert caught.value.details.where.run_id == "r1"
    assert caught.value.details.where.step == 300


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtype": 0}, "unknown element type unspecified"),
        ({"codec": 9}, "unknown codec number 9"),
        ({"codec": 0}, "unknown codec unspecified"),
        ({"sequence": 0}, "counted from 1"),
        ({"value": 2}, "value 2 of a parcel of 2"),
        ({"chunk_offset": 1}, "8 bytes at 1 of a tensor of 8"),
        ({"total_bytes": 9}, r"a float32 tensor of shape \[1, 2\] has 8 bytes, the frame announces 9"),
        ({"shape": [1] * 65}, "65 dimensions"),
        ({"num_values": 0}, "marker without tensor announces 8"),
        ({"is_no_gradient": True}, "marker without tensor announces 8"),
        ({"num_values": 0, "total_bytes": 0, "payload": b"", "dtype": 44}, "unknown element type number 44"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(PipesvcError, match=message) as caught:
        decode(change(**values))
    assert caught.value.code is ErrorCode.BAD_FRAME


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a length is missing
        b"\x0a\x05ab",  # a text is cut off
        b"\x10",  # a varint is missing
        b"\x10\x80",  # a varint is cut off
        b"\x10" + b"\xff" * 11,  # a varint is too long
        b"\x82\x01\x05abc",  # the payload is cut off
        b"\x07",  # field 0
        b"\x5a\x01\x80",  # a dimension is cut off
        b"\x0a\x01\xff",  # a text is not UTF-8
        b"\x7a\x02\xc3\x28",
    ],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PipesvcError) as caught:
        decode(data)
    assert caught.value.code is ErrorCode.BAD_FRAME


def check_against_generated(data: bytes) -> None:
    """The reader by hand accepts exactly what the generated class accepts, and reads the same."""
    try:
        expected = data_pb2.Frame.FromString(data)
    except DecodeError:
        with pytest.raises((NotCanonicalError, IndexError, UnicodeDecodeError)):
            frames._decode_canonical(data)
        return
    try:
        header, payload = frames._decode_canonical(data)
    except (NotCanonicalError, IndexError):
        return
    for name in FIELDS:
        value = getattr(expected, name)
        assert getattr(header, name) == (tuple(value) if name == "shape" else value), name
    assert payload == expected.payload


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_judged_as_the_generated_class_does(data: bytes) -> None:
    check_against_generated(data)


@settings(deadline=None)
@given(frame_parts(), st.data())
def test_damaged_frames_are_judged_as_the_generated_class_does(
    parts: tuple[FrameHeader, bytes], data: st.DataObject
) -> None:
    whole = bytearray(encode(*parts))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    check_against_generated(damaged)
    try:
        decode(damaged)
    except PipesvcError as error:
        assert error.code is ErrorCode.BAD_FRAME  # noqa: PT017 - a value is as good


@pytest.mark.parametrize("term", [-1, 2**64])
def test_numbers_that_no_field_holds_are_a_fault_of_ours(term: int) -> None:
    with pytest.raises(PipesvcError, match="does not fit"):
        encode(FrameHeader(term=term), b"")


def test_structure_and_chunk_fit_into_a_message() -> None:
    header = FrameHeader(
        run_id="r" * 64,
        term=2**64 - 1,
        num_values=1,
        sequence=2**64 - 1,
        total_bytes=frames.CHUNK_BYTES,
        dtype=types_pb2.ELEMENT_TYPE_UINT8,
        shape=(1,) * 63 + (frames.CHUNK_BYTES,),
        structure=json.dumps("x" * (48 << 10)),
    )
    assert len(encode(header, bytes(frames.CHUNK_BYTES))) < frames.CHUNK_BYTES + frames.MAX_HEADER_BYTES
