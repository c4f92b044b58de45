"""Sizes of tensors on the wire, for those parts of it that must check byte counts without importing torch."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

# Total over ElementType but for UNSPECIFIED: a test walks the enum.
ELEMENT_BYTES: Final[dict[int, int]] = {
    types_pb2.ELEMENT_TYPE_FLOAT32: 4,
    types_pb2.ELEMENT_TYPE_FLOAT64: 8,
    types_pb2.ELEMENT_TYPE_FLOAT16: 2,
    types_pb2.ELEMENT_TYPE_BFLOAT16: 2,
    types_pb2.ELEMENT_TYPE_INT8: 1,
    types_pb2.ELEMENT_TYPE_INT16: 2,
    types_pb2.ELEMENT_TYPE_INT32: 4,
    types_pb2.ELEMENT_TYPE_INT64: 8,
    types_pb2.ELEMENT_TYPE_UINT8: 1,
    types_pb2.ELEMENT_TYPE_BOOL: 1,
    types_pb2.ELEMENT_TYPE_COMPLEX64: 8,
    types_pb2.ELEMENT_TYPE_COMPLEX128: 16,
    types_pb2.ELEMENT_TYPE_UINT16: 2,
    types_pb2.ELEMENT_TYPE_UINT32: 4,
    types_pb2.ELEMENT_TYPE_UINT64: 8,
    types_pb2.ELEMENT_TYPE_FLOAT8_E4M3FN: 1,
    types_pb2.ELEMENT_TYPE_FLOAT8_E5M2: 1,
    types_pb2.ELEMENT_TYPE_FLOAT8_E4M3FNUZ: 1,
    types_pb2.ELEMENT_TYPE_FLOAT8_E5M2FNUZ: 1,
    types_pb2.ELEMENT_TYPE_COMPLEX32: 4,
    types_pb2.ELEMENT_TYPE_FLOAT8_E8M0FNU: 1,
}

# The types that a codec takes; tensors of others travel as they are. Total over Codec but for UNSPECIFIED.
CODED_TYPES: Final[dict[int, frozenset[int]]] = {
    types_pb2.CODEC_NONE: frozenset(ELEMENT_BYTES),
    types_pb2.CODEC_BF16: frozenset({types_pb2.ELEMENT_TYPE_FLOAT32}),
    types_pb2.CODEC_FP16: frozenset({types_pb2.ELEMENT_TYPE_FLOAT32}),
    types_pb2.CODEC_INT8: frozenset(
        {types_pb2.ELEMENT_TYPE_FLOAT32, types_pb2.ELEMENT_TYPE_FLOAT16, types_pb2.ELEMENT_TYPE_BFLOAT16}
    ),
}
# In a message between processes, what says that the bytes are the tensor's own.
PLAIN: Final = (types_pb2.CODEC_UNSPECIFIED, types_pb2.CODEC_NONE)
# Neighbours that share a scale in CODEC_INT8.
BLOCK_ELEMENTS: Final = 256
_SCALE_BYTES: Final = 4


def element_name(element_type: int) -> str:
    """ "float32"; for a number outside the enum, the number itself."""
    value = types_pb2.ElementType.DESCRIPTOR.values_by_number.get(element_type)
    return f"number {element_type}" if value is None else value.name.removeprefix("ELEMENT_TYPE_").lower()


def check_element_type(element_type: int) -> None:
    """Refuse a number that is no element type, by that number."""
    if element_type not in ELEMENT_BYTES:
        raise PipesvcError(
            ErrorCode.BAD_FRAME,
            f"unknown element type {element_name(element_type)}",
            advice="Run the same version of pipesvc on every host.",
        )


def total_bytes(element_type: int, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor."""
    check_element_type(element_type)
    return ELEMENT_BYTES[element_type] * prod(shape)


def codec_name(codec: int) -> str:
    """ "int8"; for a number outside the enum, the number itself."""
    value = types_pb2.Codec.DESCRIPTOR.values_by_number.get(codec)
    return f"number {codec}" if value is None else value.name.removeprefix("CODEC_").lower()


def num_blocks(num_elements: int) -> int:
    return -(-num_elements // BLOCK_ELEMENTS)


def payload_bytes(codec: int, element_type: int, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor in this form. Refuses unknown numbers, and types that the codec does not take."""
    plain_bytes = total_bytes(element_type, shape)
    if codec not in CODED_TYPES:
        raise PipesvcError(
            ErrorCode.BAD_FRAME,
            f"unknown codec {codec_name(codec)}",
            advice="Run the same version of pipesvc on every host.",
        )
    if element_type not in CODED_TYPES[codec]:
        text = f"codec {codec_name(codec)} takes no {element_name(element_type)} tensor"
        raise PipesvcError(ErrorCode.BAD_FRAME, text)
    if codec == types_pb2.CODEC_NONE:
        return plain_bytes
    num_elements = prod(shape)
    if codec == types_pb2.CODEC_INT8:
        return num_elements + _SCALE_BYTES * num_blocks(num_elements)
    return 2 * num_elements
