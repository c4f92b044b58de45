"""Layers that take time without computing, so that a step's length is told by links and schedule alone.

A layer that computes shares cores and caches with the transport under test, and takes another time on a busy machine.
One that sleeps takes what it was told, as a GPU does whose host is free. It stands apart from what measures
because it travels to pipesvc's workers, where a file brings all that it imports. b rows, d width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Pause(torch.autograd.Function):
    """A tensor as it is, some time later; its gradient likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradients[0], None, None


class Sleeper(nn.Module):
    """(b, d) to (b, d), times one number that is trained."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        later: Tensor = Pause.apply(x, self.forward_s, self.backward_s)  # type: ignore[no-untyped-call]
        return later * self.scale


class Mean(nn.Module):
    """(b, d) to (b,)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def build_model(width: int, num_sleepers: int, forward_s: float, backward_s: float) -> nn.Sequential:
    """One number a row becomes d of them, which go from sleeper to sleeper; each row gives one number again."""
    sleepers = [Sleeper(forward_s, backward_s) for _ in range(num_sleepers)]
    return nn.Sequential(nn.Linear(1, width), *sleepers, Mean())


def loss(means: Tensor, targets: Tensor) -> Tensor:
    return ((means - targets) ** 2).mean()


def same_batch_for_ever(num_rows: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(num_rows, 1, generator=generator), torch.randn(num_rows, generator=generator)
    while True:
        yield batch
