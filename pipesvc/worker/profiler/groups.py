"""Which layers are built together: a small host must hold them, and each build draws the numbers of the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pipesvc.core.layer_info import LayerInfo

# Parameters and buffers of the layers that are built together; a larger layer is a group of its own.
GROUP_BYTES: Final = 512 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Consecutive layers that are built together."""

    first: int
    end: int


def groups(layers: Sequence[LayerInfo], *, whole: bool) -> list[Group]:
    """Consecutive layers that are built together: all of them if the model cannot be built in parts."""
    found, first, size = [], 0, 0
    for index, layer in enumerate(layers):
        own = layer.parameter_bytes + layer.buffer_bytes
        if index > first and size + own > GROUP_BYTES and not whole:
            found.append(Group(first=first, end=index))
            first, size = index, 0
        size += own
    return [*found, Group(first=first, end=len(layers))]
