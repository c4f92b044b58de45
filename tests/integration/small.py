"""A job in a file of its own, as `pipesvc submit FILE:NAME` takes it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import pipesvc


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def rows() -> Iterator[tuple[Tensor, Tensor]]:
    for i in range(16):
        row = torch.full((4,), i / 16)
        yield row, row[:1]


job = pipesvc.Job(
    model=build,
    loss=mse_loss,
    optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
    data=pipesvc.DataSource(rows, batch_size=4),
    strategy=pipesvc.Strategy(num_stages=2, micro_batches=2),
)
