"""The shapes that an operator gives, where torch has no answer for tensors without values.

Some operators have no kernel on meta (`_ctc_loss`), and some have one that refuses what the CPU's takes (`_grouped_mm`
in float32). What they give has a shape that follows from shapes all the same, so they run once on zeros. An operator
whose result depends on values says so by a tag, and is not asked: zeros would answer wrongly.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from pipesvc.model.ghosts import is_ghost, shape_of, tensors_in

MOST_BYTES: Final = 256 << 20
_VALUES_DECIDE: Final = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
# Its first result is a loss for each row; the second, whose shape depends on lengths, is for backward alone.
_TAGGED_FOR_BACKWARD: Final = torch.ops.aten._ctc_loss.Tensor


def shapes_by_zeros(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results on meta, of an operator below autograd; RuntimeError where this is no way to know them."""
    decides = bool(_VALUES_DECIDE & set(func.tags)) and func is not _TAGGED_FOR_BACKWARD
    if decides or func._schema.is_mutable:
        raise RuntimeError(f"what {func} does depends on values")
    num_bytes = sum(each.numel() * each.element_size() for each in tensors_in((args, kwargs)) if is_ghost(each))
    if num_bytes > MOST_BYTES:
        raise RuntimeError(f"{func} takes {num_bytes} bytes")
    return _changed(func(*_changed(args, _zeros), **_changed(kwargs, _zeros)), shape_of)


def _zeros(tensor: Tensor) -> Tensor:
    if not is_ghost(tensor):
        return tensor
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).zero_()


def _changed(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_changed(each, change) for each in value)
    if isinstance(value, dict):
        return {key: _changed(each, change) for key, each in value.items()}
    return value
