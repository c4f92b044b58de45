"""What a user's module may hold: named by the jobs of these tests. Every size is known by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Pause(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x


class Shifted(nn.Module):
    """Would be out of its table's range at the second call, if its input were not what it was at the first."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=sparse)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids.add_(5))
        return found


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("boom")


def build() -> nn.Sequential:
    """Sigmoid keeps its output, which the second Linear keeps as its input: one storage."""
    return nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2))


def tied() -> nn.Sequential:
    """The second layer has the weight of the first one, and a bias of its own."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second, nn.Linear(3, 2))


def sleepy() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), Pause(), nn.Linear(4, 2))


def broken() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), Breaks(), nn.Linear(4, 2))


def table(sparse: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Identity(), Shifted(sparse), nn.Flatten(), nn.Linear(8, 2))


class Skipping(nn.Module):
    """What the first unit gives is used again by the last; a parameter of the root is used behind each block."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 2)
        self.first = nn.Linear(3, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = first = self.first(x)
        for block in self.blocks:
            h = self.between(block(h))
        out: Tensor = self.head(h + first)
        return out

    def between(self, h: Tensor) -> Tensor:
        return torch.sigmoid(h) * self.scale


class Sleeping(Skipping):
    """Glue that takes its time, behind each block, and before the first unit."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return super().forward(x)

    def between(self, h: Tensor) -> Tensor:
        if h.device.type != "meta":
            time.sleep(0.06)
        return super().between(h)


class Deciding(Skipping):
    def between(self, h: Tensor) -> Tensor:
        return h if h.sum() > 0 else -h


class Joined(Skipping):
    """One module with statistics, called behind every block: no cut comes between its calls."""

    def __init__(self) -> None:
        super().__init__()
        del self.scale
        self.norm = nn.BatchNorm1d(4)

    def between(self, h: Tensor) -> Tensor:
        out: Tensor = self.norm(h)
        return out


class Writing(Skipping):
    """Writes into the model's input and into what it received."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.add_(1.0))

    def between(self, h: Tensor) -> Tensor:
        return h.mul_(0.5)


class Tables(nn.Module):
    """Two units read the numbers, which forward writes before: twice five more would be out of the tables' range."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(10, 4), nn.Embedding(10, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        ids.add_(5)
        h = torch.sigmoid(self.first(ids)) + self.second(ids)
        out: Tensor = self.last(h.mean(1))
        return out


def statistics() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def frozen() -> nn.Sequential:
    model = build()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, labels)


def rows() -> Iterator[tuple[Tensor, Tensor]]:
    for index in range(64):
        yield torch.full((3,), index / 64), torch.zeros(2)


def ids() -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(64):
        yield torch.tensor([0, 1]), torch.zeros(2)


def no_rows() -> Iterator[Any]:
    raise FileNotFoundError("/data/rows")
    yield
