"""Models that leave a trace in a file for each forward: numbers do not tell how a worker came to them.

A forward on shapes alone, without gradients or of a compiled graph leaves none.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tests.integration.jobs import WIDTH


class Counted(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.path = path

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled() and not x.is_meta:
            with Path(self.path).open("a") as file:
                file.write(".")
        return torch.tanh(self.linear(x))


def layers(path: str) -> nn.Sequential:
    return nn.Sequential(Counted(path), Counted(path), nn.Linear(WIDTH, WIDTH))


class Tower(nn.Module):
    """Holds units, and is called as one."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Counted(path) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Towering(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.first, self.tower, self.head = nn.Linear(WIDTH, WIDTH), Tower(path), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.tower(self.first(x)))
        return out


def num_forwards(path: str) -> int:
    return len(Path(path).read_text())
