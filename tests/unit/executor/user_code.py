"""What a user's module may hold: named by the jobs of these tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NOT_A_FUNCTION = 3


def build(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width), nn.Dropout(0.5), nn.Linear(width, 2))


def build_failing() -> nn.Sequential:
    raise LookupError("no model today")


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, labels)


def no_optimizer(parameters: list[nn.Parameter]) -> Any:
    return len(parameters)


def source() -> Any:
    for index in range(8):
        yield torch.full((3,), float(index)), torch.zeros(2)
