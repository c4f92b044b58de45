"""Frames of the data plane, made and read by hand as valid protobuf of `pipesvc.rpc.v1.Frame`.

The generated class copies the payload into the message and out of it again (0.6 CPU seconds per GB more than here).
Here the header fields are written first and the payload last, joined once; on arrival the payload is a view into the
bytes that gRPC delivered. A frame that is laid out differently (fields reordered, repeated, unknown, packed otherwise)
is as valid and goes through the generated parser, which is slower and does copy. Both ways meet in the same checks.

Protobuf on the wire: each field is a tag, `number << 3 | type`, then a varint (type 0) or a length and bytes (type 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NoReturn, TypeAlias

from google.protobuf.message import DecodeError

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import data_pb2, types_pb2
from pipesvc.wire.elements import CODED_TYPES, codec_name, element_name, payload_bytes
from pipesvc.wire.varints import MAX_UINT64, NotCanonicalError, append_varint, put_bytes, put_varint, read_varint

WIRE_VERSION: Final = 1
CHUNK_BYTES: Final = 1 << 20  # 512 KiB to 2 MiB measured equal; 256 KiB costs a third more CPU
MAX_HEADER_BYTES: Final = 64 << 10  # all of a frame but its payload; a message cap is CHUNK_BYTES + this
MAX_DIMENSIONS: Final = 64

_UINT32: Final = (1 << 32) - 1
_ENUM: Final = (1 << 31) - 1  # negative numbers are written as 10 byte varints: left to the generated parser
_BOOL: Final = 1
_TEXTS: Final = (1, 15)
_SHAPE: Final = 11
_VARINT_LIMITS: Final = {
    2: MAX_UINT64, 3: MAX_UINT64, 4: _UINT32, 5: _UINT32, 6: _UINT32, 7: MAX_UINT64, 8: MAX_UINT64, 9: MAX_UINT64,
    10: _ENUM, 12: _BOOL, 13: _BOOL, 14: _ENUM,
}  # fmt: skip
_FIELD_OF_TAG: Final = {number << 3: number for number in _VARINT_LIMITS} | {
    number << 3 | 2: number for number in (*_TEXTS, _SHAPE)
}
_PAYLOAD_TAG: Final = b"\x82\x01"  # 16 << 3 | 2 as a varint
_CHECKSUM_TAG: Final = b"\x8d\x01"  # 17 << 3 | 5: four bytes

Values: TypeAlias = dict[int, int | bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameHeader:
    """All of a Frame but its payload; the meaning of each field is documented in data.proto."""

    run_id: str = ""
    term: int = 0
    step: int = 0
    micro_batch: int = 0
    value: int = 0
    num_values: int = 0
    sequence: int = 0
    chunk_offset: int = 0
    total_bytes: int = 0
    dtype: int = types_pb2.ELEMENT_TYPE_UNSPECIFIED
    shape: tuple[int, ...] = ()
    requires_grad: bool = False
    is_no_gradient: bool = False
    codec: int = types_pb2.CODEC_NONE
    structure: str = ""
    crc32c: int | None = None  # of the payload of this very frame

    @property
    def is_marker(self) -> bool:
        """Stands for a parcel without tensors or for a gradient that does not exist, and has no bytes."""
        return self.num_values == 0 or self.is_no_gradient

    @property
    def ends_parcel(self) -> bool:
        """This is the last tensor of its parcel."""
        return self.value + 1 >= self.num_values


def encode(header: FrameHeader, payload: bytes | bytearray | memoryview) -> bytes:
    """The frame's bytes, equal to those of the generated class but for a checksum, which it writes after the payload.

    Copies the payload once.
    """
    parts = bytearray()
    put_bytes(parts, b"\x0a", header.run_id.encode())
    put_varint(parts, 0x10, header.term)
    put_varint(parts, 0x18, header.step)
    put_varint(parts, 0x20, header.micro_batch)
    put_varint(parts, 0x28, header.value)
    put_varint(parts, 0x30, header.num_values)
    put_varint(parts, 0x38, header.sequence)
    put_varint(parts, 0x40, header.chunk_offset)
    put_varint(parts, 0x48, header.total_bytes)
    put_varint(parts, 0x50, header.dtype)
    if header.shape:
        dimensions = bytearray()
        for dimension in header.shape:
            append_varint(dimensions, dimension)
        put_bytes(parts, b"\x5a", dimensions)
    put_varint(parts, 0x60, header.requires_grad)
    put_varint(parts, 0x68, header.is_no_gradient)
    put_varint(parts, 0x70, header.codec)
    put_bytes(parts, b"\x7a", header.structure.encode())
    if header.crc32c is not None:
        parts += _CHECKSUM_TAG
        parts += header.crc32c.to_bytes(4, "little")
    if len(payload):
        parts += _PAYLOAD_TAG
        append_varint(parts, len(payload))
    return b"".join((parts, payload))


def decode(data: bytes) -> tuple[FrameHeader, memoryview]:
    """The checked header and a view of the payload (of `data` itself when the layout is ours)."""
    try:
        header, payload = _decode_canonical(data)
    except (NotCanonicalError, IndexError):
        header, payload = _decode_generated(data)
    except UnicodeDecodeError:
        raise PipesvcError(ErrorCode.BAD_FRAME, "a text field of a frame is not UTF-8") from None
    _check(header, len(payload))
    return header, payload


def _decode_canonical(data: bytes) -> tuple[FrameHeader, memoryview]:
    """Read fields in ascending order, each at most once, then the checksum, and the payload last and to the end."""
    values: Values = {}
    at, last_field, end = 0, 0, len(data)
    while at < end:
        tag = data[at]
        field = _FIELD_OF_TAG.get(tag, 0)
        if field <= last_field:
            return _read_end(data, at, values)
        last_field = field
        value, at = read_varint(data, at + 1)
        limit = _VARINT_LIMITS.get(field)
        if limit is None:
            stop = at + value
            if stop > end:
                raise NotCanonicalError
            values[field] = data[at:stop]
            at = stop
        elif value <= limit:
            values[field] = value
        else:
            raise NotCanonicalError
    return _header(values), memoryview(b"")


def _read_end(data: bytes, at: int, values: Values) -> tuple[FrameHeader, memoryview]:
    """What follows the fields below the payload's: the checksum and the payload, one of them or both."""
    crc32c = None
    if data[at : at + 2] == _CHECKSUM_TAG:
        at += 6
        if at > len(data):
            raise NotCanonicalError
        crc32c = int.from_bytes(data[at - 4 : at], "little")
        if at == len(data):
            return _header(values, crc32c), memoryview(b"")
    if data[at : at + 2] != _PAYLOAD_TAG:
        raise NotCanonicalError
    length, at = read_varint(data, at + 2)
    if at + length != len(data):
        raise NotCanonicalError
    return _header(values, crc32c), memoryview(data)[at:]


def _header(values: Values, crc32c: int | None = None) -> FrameHeader:
    def number(field: int) -> int:
        value = values.get(field, 0)
        assert isinstance(value, int)
        return value

    def data(field: int) -> bytes:
        value = values.get(field, b"")
        assert isinstance(value, bytes)
        return value

    return FrameHeader(
        run_id=data(1).decode(),
        term=number(2),
        step=number(3),
        micro_batch=number(4),
        value=number(5),
        num_values=number(6),
        sequence=number(7),
        chunk_offset=number(8),
        total_bytes=number(9),
        dtype=number(10),
        shape=_dimensions(data(11)),
        requires_grad=bool(number(12)),
        is_no_gradient=bool(number(13)),
        codec=number(14),
        structure=data(15).decode(),
        crc32c=crc32c,
    )


def _dimensions(data: bytes) -> tuple[int, ...]:
    dimensions = []
    at = 0
    while at < len(data):
        dimension, at = read_varint(data, at)
        if dimension > MAX_UINT64:
            raise NotCanonicalError
        dimensions.append(dimension)
    return tuple(dimensions)


def _decode_generated(data: bytes) -> tuple[FrameHeader, memoryview]:
    try:
        frame = data_pb2.Frame.FromString(data)
    except DecodeError:
        message = f"{len(data)} bytes that are no Frame message"
        raise PipesvcError(ErrorCode.BAD_FRAME, message, advice="Speak protos/pipesvc/rpc/v1/data.proto.") from None
    header = FrameHeader(
        run_id=frame.run_id,
        term=frame.term,
        step=frame.step,
        micro_batch=frame.micro_batch,
        value=frame.value,
        num_values=frame.num_values,
        sequence=frame.sequence,
        chunk_offset=frame.chunk_offset,
        total_bytes=frame.total_bytes,
        dtype=int(frame.dtype),
        shape=tuple(frame.shape),
        requires_grad=frame.requires_grad,
        is_no_gradient=frame.is_no_gradient,
        codec=int(frame.codec),
        structure=frame.structure,
        crc32c=frame.crc32c if frame.HasField("crc32c") else None,
    )
    return header, memoryview(frame.payload)


def _check(header: FrameHeader, payload_bytes: int) -> None:
    """Refuse what no later part could understand: unknown numbers and counts that contradict each other."""
    if header.codec not in CODED_TYPES:
        _refuse(header, f"unknown codec {codec_name(header.codec)}")
    if header.sequence < 1:
        _refuse(header, "sequence number 0; tensors of a link are counted from 1")
    if header.value >= max(1, header.num_values):
        _refuse(header, f"value {header.value} of a parcel of {header.num_values}")
    if header.chunk_offset + payload_bytes > header.total_bytes:
        _refuse(header, f"{payload_bytes} bytes at {header.chunk_offset} of a tensor of {header.total_bytes}")
    if header.is_marker:
        if header.total_bytes:
            _refuse(header, f"a marker without tensor announces {header.total_bytes} bytes")
        if header.dtype:
            _payload_bytes(replace(header, codec=types_pb2.CODEC_NONE))
        return
    if len(header.shape) > MAX_DIMENSIONS:
        _refuse(header, f"a tensor of {len(header.shape)} dimensions, at most {MAX_DIMENSIONS} are allowed")
    expected = _payload_bytes(header)
    if expected != header.total_bytes:
        tensor = f"{element_name(header.dtype)} tensor of shape {list(header.shape)}"
        form = "" if header.codec == types_pb2.CODEC_NONE else f" in codec {codec_name(header.codec)}"
        _refuse(header, f"a {tensor} has {expected} bytes{form}, the frame announces {header.total_bytes}")


def _payload_bytes(header: FrameHeader) -> int:
    try:
        return payload_bytes(header.codec, header.dtype, header.shape)
    except PipesvcError as error:
        raise error.at(_where(header)) from None


def _where(header: FrameHeader) -> Where:
    return Where(run_id=header.run_id, step=header.step, micro_batch=header.micro_batch)


def _refuse(header: FrameHeader, message: str) -> NoReturn:
    raise PipesvcError(ErrorCode.BAD_FRAME, message, where=_where(header))
