"""Plain modules with a forward of their own, as a user has them, and their data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pipesvc

VOCABULARY, WIDTH, LENGTH, NUM_CLASSES = 11, 8, 5, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU())
        self.back = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        y: Tensor = x + self.back(self.feed(x))
        return y


class Skipping(nn.Module):
    """Arguments by name, one of them a mask for every block; the embedding is used again before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, NUM_CLASSES)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor, weight: Tensor, scale: float = 0.5) -> Tensor:
        first = self.words(ids)
        mask = torch.triu(torch.full((ids.shape[1], ids.shape[1]), -1e9), 1)
        x = first
        for block in self.blocks:
            x = block(x, mask)
        y = self.norm(x + first * scale) * weight[:, None, None]
        logits: Tensor = self.head(y.mean(1))
        return logits


class Tied(Skipping):
    """The head is the embedding, of more than a message of the local socket carries; a block is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(600, WIDTH)
        self.head = nn.Linear(WIDTH, 600, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, weight: Tensor, scale: float = 0.5) -> Tensor:
        mask = torch.triu(torch.full((ids.shape[1], ids.shape[1]), -1e9), 1)
        x = self.words(ids)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x, mask)
        logits: Tensor = self.head(self.norm(x).mean(1) * weight[:, None])
        return logits


class Deciding(Skipping):
    """What it does depends on a value that it computes."""

    def forward(self, ids: Tensor, weight: Tensor, scale: float = 0.5) -> Tensor:
        x = self.words(ids).mean(1)
        if x.sum() > 0:
            x = x * 2
        logits: Tensor = self.head(self.norm(x))
        return logits


class Marked(nn.Module):
    """A skip over the middle of three guards, and a tuple of arguments."""

    def __init__(self) -> None:
        super().__init__()
        with pipesvc.device_guard("cpu:first"):
            self.first = nn.Linear(WIDTH, WIDTH)
        with pipesvc.device_guard("cpu:middle"):
            self.middle = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
        with pipesvc.device_guard("cpu:last"):
            self.last = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        h = self.first(x)
        logits: Tensor = self.last(torch.relu(self.middle(h) + h) + bias)
        return logits


class WithLoss(nn.Module):
    """One dict, with the labels in it; the result is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Skipping()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return cross_entropy(self.inner(batch["ids"], batch["weight"]), batch["label"])


def words(num_rows: int = 40) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_rows):
        ids = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
        yield {"ids": ids, "weight": torch.rand((), generator=generator)}, ids[0] % NUM_CLASSES


def words_with_labels(num_rows: int = 40) -> Iterator[dict[str, Any]]:
    for inputs, label in words(num_rows):
        yield inputs | {"label": label}


def pairs(num_rows: int = 40) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_rows):
        row = torch.randn(WIDTH, generator=generator)
        yield (row, torch.randn(WIDTH, generator=generator)), row[:NUM_CLASSES].argmax()
