"""Models with a forward of their own, and data for them: named by the jobs of these tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import pipesvc

RELEASED = threading.Event()


class Skip(nn.Module):
    """What the first unit gives is used after the last one too."""

    def __init__(self) -> None:
        super().__init__()
        with pipesvc.device_guard("cpu:first"):
            self.first = nn.Linear(3, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor, bias: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        h = first = self.first(x)
        for block in self.blocks:
            h = block(h).relu()
        out: Tensor = self.last(h) * scale + first[:, :2]
        return out if bias is None else out + bias


class Reader(Skip):
    """Reads a value."""

    def forward(self, x: Tensor, bias: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        h = self.first(x)
        out: Tensor = self.last(h if h.sum().item() > 0 else -h)
        return out


class Pair(Skip):
    def forward(self, x: Tensor, bias: Tensor, *, scale: float = 1.0) -> Tensor:  # type: ignore[override]
        return super().forward(x, bias, scale=scale)


class Narrow(Skip):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 2)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x))
        return out


class Nested(Skip):
    """The last unit has parts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last = Two()  # type: ignore[assignment]


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, labels)


def spread(output: Tensor, labels: Tensor) -> float:
    return float(output.max() - output.min())


def broken_metric(output: Tensor, labels: Tensor) -> float:
    raise ZeroDivisionError("no rows of this class")


def whole_output(output: Tensor, labels: Tensor) -> Tensor:
    return output


def trains_metric(output: Tensor, labels: Tensor) -> float:
    """Only in eval() mode, and without a graph, is it what an evaluation asks."""
    return 1.0 / (not output.requires_grad)


def wide_rows() -> Iterator[Any]:
    for _ in range(8):
        yield torch.zeros(5), torch.zeros(2)


def rows() -> Iterator[Any]:
    for index in range(8):
        yield torch.full((3,), float(index)), torch.zeros(2)


def named_rows() -> Iterator[Any]:
    for index in range(8):
        yield {"bias": torch.ones(2), "x": torch.full((3,), float(index))}, torch.zeros(2)


def other_names() -> Iterator[Any]:
    for _ in range(8):
        yield {"y": torch.ones(2), "z": torch.ones(2)}, torch.zeros(2)


def failing() -> Iterator[Any]:
    raise LookupError("no file here")
    yield


def late() -> Iterator[Any]:
    RELEASED.wait(20)
    yield from rows()
