"""What the zoo knows of a model: how it is built, what a micro-batch of it is, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def square_loss(outputs: Any) -> Any:
    """Of whatever tensors a model gives: their distance from 1, for some begin with a head of zeros."""
    if isinstance(outputs, Tensor):
        return (outputs - 1).square().mean()
    tensors = outputs.values() if isinstance(outputs, dict) else outputs
    return sum(((each - 1).square().mean() for each in tensors), torch.zeros(()))


def own_loss(outputs: Any) -> Any:
    """That which the model has made."""
    return outputs["loss"] if isinstance(outputs, dict) else outputs


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True)


def fused(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, fused=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`inputs(b, t)` gives a micro-batch as a data source does: b rows, of t positions where rows have such."""

    build: Callable[[], Any]
    inputs: Callable[[int, int], Any]
    loss: Callable[[Any], Any] = square_loss
    optimizer: MakeOptimizer = adam
    is_chain: bool = False
    """A list of layers, which is run without replay."""


def ids(b: int, t: int, vocabulary: int) -> Tensor:
    """Without 0, which is padding to some models."""
    return torch.randint(1, vocabulary, (b, t))
