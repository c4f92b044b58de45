"""State of modules that a replay must know of."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn

_DEPTH: Final = 4


def changes_by_class(unit: nn.Module) -> bool:
    """Running statistics: torch's kernels write them without counting it as a write."""
    return any(getattr(each, "running_mean", None) is not None for each in unit.modules() if each.training)


def tensors_held(value: Any, depth: int = _DEPTH) -> bool:
    """Whether an object keeps tensors, as a cache does. Modules hold parameters, which are known."""
    if isinstance(value, Tensor):
        return True
    if depth == 0 or isinstance(value, nn.Module | type) or callable(value):
        return False
    if isinstance(value, dict):
        return any(tensors_held(each, depth - 1) for each in value.values())
    if isinstance(value, list | tuple | set):
        return any(tensors_held(each, depth - 1) for each in value)
    return any(tensors_held(each, depth - 1) for each in getattr(value, "__dict__", {}).values())
