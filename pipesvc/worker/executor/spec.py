"""What a stage is, apart from its part of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pipesvc.model.recompute import Recompute


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
    # Backwards run as I and W.
    splits_backward: bool = False
    recompute: Recompute = field(default_factory=Recompute)
    compiles: bool = False
    metrics: tuple[tuple[str, Callable[..., Any]], ...] = ()
    clip_value: float = 0.0  # 0: single values of gradients are not bounded
    clips_norm: bool = False
    autocast: torch.dtype | None = None  # None: all is computed as it is
    scale: float | None = None  # of the first loss; None: losses are not scaled
    # BatchNorm takes one step of its statistics for each step.
    defers_batch_norm: bool = False

    @property
    def is_last(self) -> bool:
        return self.index == self.num_stages - 1
