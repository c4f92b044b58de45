"""The two encodings of protobuf that a frame is made of: a varint, and a length with bytes."""

from __future__ import annotations

from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError

MAX_UINT64: Final = (1 << 64) - 1


class NotCanonicalError(Exception):
    """The hand-made reader does not know this layout; whether it is valid is for the generated parser to say."""


def put_varint(parts: bytearray, tag: int, value: int) -> None:
    """A field; none for 0."""
    if value:
        parts.append(tag)
        append_varint(parts, value)


def put_bytes(parts: bytearray, tag: bytes, value: bytes | bytearray) -> None:
    """A field; none for no bytes."""
    if value:
        parts += tag
        append_varint(parts, len(value))
        parts += value


def append_varint(parts: bytearray, value: int) -> None:
    if not 0 <= value <= MAX_UINT64:
        raise PipesvcError(ErrorCode.INTERNAL, f"{value} does not fit into a frame's field")
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The value and the index after it. IndexError when the data ends first."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    shift = 7
    while shift < 64:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise NotCanonicalError
