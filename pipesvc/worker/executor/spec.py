"""What a stage is, apart from its part of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """`loss` is None when the model returns the loss."""

    index: int
    num_stages: int
    first_layer: int
    device: torch.device
    seed: int
    loss: Callable[..., Any] | None
    check_finite: bool
    clip_value: float = 0.0  # 0: single values of gradients are not bounded

    @property
    def is_last(self) -> bool:
        return self.index == self.num_stages - 1
