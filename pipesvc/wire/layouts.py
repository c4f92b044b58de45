"""How a tensor lies in memory, carried over the wire.

torch chooses its loops by strides and alignment: `gelu` of a slice has other bits than `gelu` of its contiguous copy,
and so has `linear` of a tensor that begins between two 16-byte boundaries (measured with torch 2.13 on CPU; beginnings
that differ by a multiple of 16 bytes never gave other bits). One process would use a tensor of another stage as it was
made, so it is laid here as it lay there. Whatever is contiguous and begins at such a boundary, as nearly all tensors
do, travels as ever. Of the others the structure of the parcel has the layouts, and what is sent is either the memory
that the tensor spans (transposed, channels last, expanded: no more bytes than elements) or its contiguous form, which
the receiver spreads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.wire.frames import MAX_DIMENSIONS

ALIGNMENT_BYTES: Final = 16
# A slice of a larger tensor spans more memory than it has elements. Beyond this it travels contiguous, and its bits on
# the other side may be others: at most four times its bytes and 16 MiB.
_MOST_TIMES: Final = 4
_MOST_MORE_BYTES: Final = 16 << 20
MAX_TEXT_BYTES: Final = 60 << 10  # fits into the header of a frame

Leaves = Sequence[Tensor | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """`offset`: elements between the last 16-byte boundary and the first element."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def extent(self) -> int:
        """Elements from the first to the last, gaps included."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def fits(self, item_bytes: int) -> bool:
        most = _MOST_TIMES * math.prod(self.shape) * item_bytes + _MOST_MORE_BYTES
        return (self.offset + self.extent) * item_bytes <= most


def layout_of(tensor: Tensor) -> Layout | None:
    """None for what needs none."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel() or tensor.is_conj() or tensor.is_neg():
        return None
    offset = tensor.data_ptr() % ALIGNMENT_BYTES // tensor.element_size()
    if not offset and tensor.is_contiguous():
        return None
    layout = Layout(offset=offset, shape=tuple(tensor.shape), strides=tensor.stride())
    return layout if layout.fits(tensor.element_size()) else None


def pack(structure: str, leaves: Leaves) -> tuple[str, list[Tensor | None]]:
    """What to send: the structure with the layouts in it, and tensors that are as good as contiguous."""
    layouts = {index: layout for index, leaf in enumerate(leaves) if leaf is not None and (layout := layout_of(leaf))}
    if not layouts:
        return structure, list(leaves)
    entries = {index: [each.offset, each.shape, each.strides] for index, each in layouts.items()}
    text = f"{json.dumps(entries, separators=(',', ':'))}\n{structure}"
    if len(text) > MAX_TEXT_BYTES:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"structure and layouts of {len(leaves)} tensors take {len(text)} of {MAX_TEXT_BYTES} bytes",
            advice="Make the tensors contiguous, or stack them.",
        )
    packed = [
        _memory_of(leaf, layouts[index]) if leaf is not None and index in layouts else leaf
        for index, leaf in enumerate(leaves)
    ]
    return text, packed


def unpack(text: str, leaves: Leaves) -> tuple[str, list[Tensor | None]]:
    """The structure and the tensors, each laid as its maker had it."""
    if not text.startswith("{"):  # no structure begins so
        return text, list(leaves)
    structure, layouts = _read(text)
    found = list(leaves)
    for index, layout in layouts.items():
        leaf = found[index] if 0 <= index < len(found) else None
        if leaf is None:
            raise _malformed(f"a layout for tensor {index} of {len(found)}")
        found[index] = _laid(leaf, layout)
    return structure, found


def copy_of(tensor: Tensor) -> Tensor:
    """With memory of its own, laid alike."""
    layout = layout_of(tensor)
    if layout is None:
        return tensor.detach().clone()
    return _laid(_memory_of(tensor.detach(), layout).clone(), layout)


def _memory_of(tensor: Tensor, layout: Layout) -> Tensor:
    """The memory from the first element to the last, where that is no more than the elements; else the tensor."""
    if layout.extent > tensor.numel():
        return tensor
    memory = tensor.detach().as_strided((layout.extent,), (1,), tensor.storage_offset())
    return memory.requires_grad_(tensor.requires_grad)


def _laid(tensor: Tensor, layout: Layout) -> Tensor:
    is_memory = tuple(tensor.shape) != layout.shape
    if is_memory and tuple(tensor.shape) != (layout.extent,):
        raise _malformed(f"{list(tensor.shape)} elements for {layout}")
    if not layout.fits(tensor.element_size()):
        raise _malformed(f"{layout} takes too much memory")
    if is_memory and not layout.offset:
        return tensor.as_strided(layout.shape, layout.strides)
    room = torch.empty(layout.offset + layout.extent, dtype=tensor.dtype, device=tensor.device)
    laid = room.as_strided(layout.shape, layout.strides, layout.offset)
    (room[layout.offset :] if is_memory else laid).copy_(tensor)
    return laid


def _read(text: str) -> tuple[str, dict[int, Layout]]:
    entries, _, structure = text.partition("\n")
    try:
        return structure, {int(index): _layout(entry) for index, entry in json.loads(entries).items()}
    except (ValueError, RecursionError):
        raise _malformed(f"{entries[:80]!r} is no list of layouts") from None


def _layout(entry: Any) -> Layout:
    match entry:
        case [offset, list(shape), list(strides)]:
            numbers = [offset, *shape, *strides]
            are_numbers = all(type(each) is int and 0 <= each < 1 << 48 for each in numbers)
            if are_numbers and len(shape) == len(strides) <= MAX_DIMENSIONS and 0 not in shape:
                return Layout(offset=offset, shape=tuple(shape), strides=tuple(strides))
    raise _malformed(f"{str(entry)[:80]!r} is no layout")


def _malformed(message: str) -> PipesvcError:
    return PipesvcError(ErrorCode.BAD_FRAME, f"malformed layouts of a parcel: {message}")
