"""Modules with forwards of their own that cannot be cut, or not yet."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH = 7, 4


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        for block in self.blocks:
            h = block(h).relu()
        out: Tensor = self.head(h)
        return out


class Checkpointed(Plain):
    def forward(self, ids: Tensor) -> Tensor:
        h = checkpoint(lambda x: self.blocks[1](self.blocks[0](x)), self.words(ids), use_reentrant=False)
        out: Tensor = self.head(h)
        return out


class Reading(Plain):
    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        if h.sum() > 0:
            h = self.blocks[0](h)
        out: Tensor = self.head(self.blocks[1](h))
        return out


class Tower(nn.Module):
    """Holds units, and is called as one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            h = block(h).relu()
        return h


class Towering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.tower, self.head = nn.Embedding(VOCABULARY, WIDTH), Tower(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.tower(self.words(ids)))
        return out


def words() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(16):
        word = torch.randint(VOCABULARY, (), generator=generator)
        yield word, word
