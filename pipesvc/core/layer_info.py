"""What is known of a layer, or of a unit of a module, before anything is built.

Cuts, flows and plans are all made of it, so it lies below each of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedParameter:
    """A parameter that has several users; who they are is told where this stands."""

    name: str  # its first in the unsplit model
    num_bytes: int
    is_trained: bool  # its gradient is wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerInfo:
    """One layer as the inspector found it."""

    name: str
    type: str
    mark: str = ""  # the device_guard label, empty if unmarked
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    gradient_bytes: int = 0  # at least, in a step
    optimizer_bytes: int = 0  # at least, after one
    shared: tuple[SharedParameter, ...] = ()  # those that another layer of a list holds, too
