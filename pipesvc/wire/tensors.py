"""Tensors to bytes and back: the only module of the wire that knows torch.

A tensor is sent as its element type and the bytes of its contiguous form, never by way of numpy's types (which lack
bfloat16 and the 8-bit floats) and never with a type named in text. On arrival it is made over the received memory
without a copy, and that memory may be used again when the last tensor over it has died: torch keeps the very
memoryview object alive that it was given, so a `weakref.finalize` on that object fires then, also when the last holder
was autograd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.elements import ELEMENT_BYTES, check_element_type, element_name, total_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

# Total both ways: a test walks ElementType and torch's dtypes.
TORCH_DTYPES: Final[dict[int, torch.dtype]] = {
    types_pb2.ELEMENT_TYPE_FLOAT32: torch.float32,
    types_pb2.ELEMENT_TYPE_FLOAT64: torch.float64,
    types_pb2.ELEMENT_TYPE_FLOAT16: torch.float16,
    types_pb2.ELEMENT_TYPE_BFLOAT16: torch.bfloat16,
    types_pb2.ELEMENT_TYPE_INT8: torch.int8,
    types_pb2.ELEMENT_TYPE_INT16: torch.int16,
    types_pb2.ELEMENT_TYPE_INT32: torch.int32,
    types_pb2.ELEMENT_TYPE_INT64: torch.int64,
    types_pb2.ELEMENT_TYPE_UINT8: torch.uint8,
    types_pb2.ELEMENT_TYPE_BOOL: torch.bool,
    types_pb2.ELEMENT_TYPE_COMPLEX64: torch.complex64,
    types_pb2.ELEMENT_TYPE_COMPLEX128: torch.complex128,
    types_pb2.ELEMENT_TYPE_UINT16: torch.uint16,
    types_pb2.ELEMENT_TYPE_UINT32: torch.uint32,
    types_pb2.ELEMENT_TYPE_UINT64: torch.uint64,
    types_pb2.ELEMENT_TYPE_FLOAT8_E4M3FN: torch.float8_e4m3fn,
    types_pb2.ELEMENT_TYPE_FLOAT8_E5M2: torch.float8_e5m2,
    types_pb2.ELEMENT_TYPE_FLOAT8_E4M3FNUZ: torch.float8_e4m3fnuz,
    types_pb2.ELEMENT_TYPE_FLOAT8_E5M2FNUZ: torch.float8_e5m2fnuz,
    types_pb2.ELEMENT_TYPE_COMPLEX32: torch.complex32,
    types_pb2.ELEMENT_TYPE_FLOAT8_E8M0FNU: torch.float8_e8m0fnu,
}
_ELEMENT_TYPES: Final = {dtype: element_type for element_type, dtype in TORCH_DTYPES.items()}


def element_type_of(tensor: torch.Tensor) -> int:
    """The tensor's ElementType. Refuses tensors that are not dense, real memory of a listed type."""
    element_type = _ELEMENT_TYPES.get(tensor.dtype)
    if element_type is None or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        what = f"{tensor.layout} tensor of {tensor.dtype} on {tensor.device}".replace("torch.", "")
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"a {what} cannot travel between stages",
            advice="Make it a dense tensor of a float, complex, integer or bool type, or keep it within one stage.",
        )
    return element_type


def torch_dtype(element_type: int) -> torch.dtype:
    """torch's name for an ElementType; an unknown number is refused."""
    check_element_type(element_type)
    return TORCH_DTYPES[element_type]


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's contiguous form."""
    return tensor.numel() * tensor.element_size()


def writable_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    assert tensor.is_cpu
    assert tensor.is_contiguous()
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of the contiguous form: the tensor's own memory where it is contiguous on the CPU, else a copy."""
    element_type_of(tensor)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def copy_into(tensor: torch.Tensor, view: memoryview) -> None:
    """Write the tensor's bytes, from whatever device and strides, with one copy. `view` has exactly that size."""
    element_type = element_type_of(tensor)
    _check_size(element_type, tensor.shape, view)
    if _is_direct(view, element_type):
        from_buffer(view, element_type, tensor.shape).copy_(tensor.detach())
    else:
        view[:] = tensor_bytes(tensor)


def from_buffer(view: memoryview, element_type: int, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over `view` without a copy, holding that very object.

    A view that is read-only (bytes of a message) or not aligned for the type is copied instead, and not held.
    """
    _check_size(element_type, shape, view)
    dtype = torch_dtype(element_type)
    if view.nbytes == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    source = view if _is_direct(view, element_type) else bytearray(view)
    return torch.frombuffer(source, dtype=dtype).view(tuple(shape))


def _is_direct(view: memoryview, element_type: int) -> bool:
    """A tensor can live in this memory: it is writable, there is some, and it is aligned."""
    if view.readonly or view.nbytes == 0:
        return False
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr() % ELEMENT_BYTES[element_type] == 0


def _check_size(element_type: int, shape: Sequence[int], view: memoryview) -> None:
    expected = total_bytes(element_type, shape)
    if expected != view.nbytes:
        tensor = f"{element_name(element_type)} tensor of shape {list(shape)}"
        raise PipesvcError(ErrorCode.BAD_FRAME, f"a {tensor} has {expected} bytes, the buffer has {view.nbytes}")
