"""What is known of a layer, or of a unit of a module, before anything is built.

Cuts, flows and plans are all made of it, so it lies below each of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerInfo:
    """One layer as the inspector found it."""

    name: str
    type: str
    mark: str = ""  # the device_guard label, empty if unmarked
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    gradient_bytes: int = 0  # at least, in a step
