"""Lossy forms of the tensors that stages send each other: fewer bytes on a slow network, for a stated error.

A cast of the whole tensor to fewer bits is either 16 bits wide or, with one scale for all, ruined by its largest value.
Here each block of 256 neighbours (a piece of a row, as a rule) has a scale of its own, a 64th of what the block saves.

| codec | takes | bytes of n elements | error of one value x |
|---|---|---|---|
| bf16 | float32 | 2 n | 2^-8 abs(x), or 2^-134 where that is more; inf and NaN stay, beyond 3.389e38 it is inf |
| fp16 | float32 | 2 n | 2^-11 abs(x), or 2^-25 where that is more |
| int8 | float32, float16, bfloat16 | n + 4 for each block | scale / 2, scale = largest abs(x) of the block / 127 |

To the last comes the rounding of the type itself, 2^-22 abs(x) for float32. A scale is 2^-126 at least, so of smaller
numbers only that counts. Integers, bools, complex and float64 tensors, single numbers (which losses are) and whatever
would not become smaller are never coded. A tensor that its codec cannot hold, with infinities or NaN for int8 and fp16
or values beyond 65504 for fp16, travels as it is: a mask of -inf keeps its zeros, an overflow is seen by a loss scaler
where it happened, and nothing overflows that did not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire import tensors
from pipesvc.wire.elements import BLOCK_ELEMENTS, CODED_TYPES, num_blocks, payload_bytes

# Elements that are worked on at once: temporaries stay in the cache, and a call of torch is worth its while.
# Measured: 4 to 6 GB/s from 64 Ki to 1 Mi, 2.9 GB/s with 32 Ki.
_TILE: Final = 1 << 18
_HALF_TYPES: Final[dict[int, torch.dtype]] = {types_pb2.CODEC_BF16: torch.bfloat16, types_pb2.CODEC_FP16: torch.float16}
_LARGEST_HALF: Final = torch.finfo(torch.float16).max
_LARGEST_INT8: Final = 127
_SMALLEST_SCALE: Final = torch.finfo(torch.float32).tiny  # its reciprocal is finite


def codec_for(codec: int, tensor: Tensor) -> int:
    """In which form the tensor may travel where a link has this codec: the same, or CODEC_NONE."""
    if codec == types_pb2.CODEC_NONE or not tensor.dim():
        return types_pb2.CODEC_NONE
    element_type = tensors.element_type_of(tensor)
    if element_type not in CODED_TYPES[codec]:
        return types_pb2.CODEC_NONE
    is_smaller = payload_bytes(codec, element_type, tensor.shape) < tensors.num_bytes(tensor)
    return codec if is_smaller else types_pb2.CODEC_NONE


def encode(tensor: Tensor, codec: int, view: memoryview) -> bool:
    """Write the coded bytes; `view` is writable, aligned to 4 and has `payload_bytes`.

    False: the codec cannot hold this tensor, and what `view` has now means nothing.
    """
    flat = tensor.detach().reshape(-1)
    if codec == types_pb2.CODEC_INT8:
        return _encode_blocks(flat, *_parts(torch.frombuffer(view, dtype=torch.uint8), flat.numel()))
    torch.frombuffer(view, dtype=_HALF_TYPES[codec]).copy_(flat)
    return codec == types_pb2.CODEC_BF16 or _fits_half(flat)


def decode(view: memoryview, codec: int, element_type: int, shape: Sequence[int]) -> Tensor:
    """A tensor of its own memory. The view has `payload_bytes` and is not held."""
    dtype = tensors.torch_dtype(element_type)
    data = tensors.from_buffer(view, types_pb2.ELEMENT_TYPE_UINT8, (view.nbytes,))
    if codec == types_pb2.CODEC_INT8:
        flat = torch.empty(tuple(shape), dtype=dtype).view(-1)
        _decode_blocks(flat, *_parts(data, flat.numel()))
        return flat.view(tuple(shape))
    return data.view(_HALF_TYPES[codec]).to(dtype).view(tuple(shape))


def relative_error(tensor: Tensor, decoded: Tensor) -> float:
    """Root mean square of the difference by that of the tensor, of finite elements alone; 0 where all are zero."""
    exact = tensor.detach().double()  # squares of float32 may be infinite, or zero
    is_finite = torch.isfinite(exact)
    exact, difference = exact[is_finite], (exact - decoded.double())[is_finite]
    norm = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(difference)) / norm if norm else 0.0


def _fits_half(flat: Tensor) -> bool:
    lowest, highest = torch.aminmax(flat)
    # Comparisons with NaN are false.
    return bool((lowest >= -_LARGEST_HALF) & (highest <= _LARGEST_HALF))


def _parts(data: Tensor, num_elements: int) -> tuple[Tensor, Tensor]:
    """The scales, which come first so that they are aligned, and the numbers."""
    scale_bytes = 4 * num_blocks(num_elements)
    return data[:scale_bytes].view(torch.float32), data[scale_bytes:].view(torch.int8)


def _tiles(num_elements: int) -> list[tuple[int, int, int]]:
    """First element, end, and elements of a block: whole blocks, then what is left as one."""
    whole = num_elements // BLOCK_ELEMENTS * BLOCK_ELEMENTS
    tiles = [(begin, min(begin + _TILE, whole), BLOCK_ELEMENTS) for begin in range(0, whole, _TILE)]
    return tiles if whole == num_elements else [*tiles, (whole, num_elements, num_elements - whole)]


def _encode_blocks(flat: Tensor, scales: Tensor, numbers: Tensor) -> bool:
    room = torch.empty(min(flat.numel(), _TILE))
    for begin, end, block in _tiles(flat.numel()):
        values = flat[begin:end].view(-1, block).float()
        scaled = room[: end - begin].view(-1, block)
        first = begin // BLOCK_ELEMENTS
        scale = scales[first : first + len(values)]
        # amax of the absolute values: twenty times as fast as aminmax or a norm over so short a dimension.
        torch.amax(torch.abs(values, out=scaled), 1, out=scale)
        scale.div_(_LARGEST_INT8).clamp_(min=_SMALLEST_SCALE)
        torch.div(values, scale[:, None], out=scaled).round_()
        numbers[begin:end].view(-1, block).copy_(scaled)
    # The very largest numbers would be rounded to infinity when they are decoded.
    return bool((scales * _LARGEST_INT8).isfinite().all())


def _decode_blocks(flat: Tensor, scales: Tensor, numbers: Tensor) -> None:
    for begin, end, block in _tiles(flat.numel()):
        values = flat[begin:end].view(-1, block)
        first = begin // BLOCK_ELEMENTS
        scale = scales[first : first + len(values), None]
        if flat.dtype == torch.float32:
            values.copy_(numbers[begin:end].view(-1, block)).mul_(scale)
        else:
            values.copy_(numbers[begin:end].view(-1, block).float().mul_(scale))
