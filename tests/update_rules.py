"""Rules of an update that a job names by its import path."""

from __future__ import annotations

from typing import Any

from torch import nn


def no_decay_for_vectors(name: str, parameter: nn.Parameter) -> dict[str, Any]:
    """Of AdamW's groups."""
    return {"weight_decay": 0.0} if parameter.ndim == 1 else {}


def halved(epoch: int) -> float:
    """For LambdaLR."""
    return 0.5**epoch
