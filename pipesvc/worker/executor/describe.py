"""Values in few words, for errors: a wrong shape between two layers is seen when the message shows what came."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

_MAX_ITEMS: Final = 4


def describe(value: Any) -> str:
    """As in "float32 (4, 3)" or "{'ids': int64 (4,), 'mask': None}"."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, dict):
        return "{" + _joined([f"{key!r}: {describe(each)}" for key, each in value.items()]) + "}"
    if isinstance(value, tuple):
        return "(" + _joined([describe(each) for each in value]) + ")"
    if isinstance(value, list):
        return "[" + _joined([describe(each) for each in value]) + "]"
    return "None" if value is None else type(value).__name__


def _joined(items: list[str]) -> str:
    return ", ".join(items if len(items) <= _MAX_ITEMS else [*items[:_MAX_ITEMS], "..."])
