"""Modules with a forward of their own, with their losses and batches, as users write them.

Letters: b rows, t positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from tests.unit.executor.batches import Batch, batch_of
from tests.unit.model.replay_language import VOCABULARY, Block, D
from tests.unit.model.replay_zoo import Towers, UNet

__all__ = ["Language", "LateTable", "Towers", "UNet", "images", "pairs", "sentences"]


class Language(nn.Module):
    """GPT-like: a mask that every block uses, dropout in and between the blocks, arguments by name."""

    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.wpe = nn.Embedding(64, D)
        self.drop = nn.Dropout(p)
        self.h = nn.ModuleList(Block(p) for _ in range(4))
        self.ln_f = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        t = ids.shape[1]
        mask = torch.triu(torch.full((t, t), -1e9, device=ids.device), 1)
        if padding is not None:
            mask = mask + (padding.sum(0) == 0) * -1.0
        h = self.drop(self.wte(ids) + self.wpe(torch.arange(t, device=ids.device)))
        for block in self.h:
            h = nn.functional.dropout(block(h, mask), 0.1, self.training)
        logits: Tensor = self.lm_head(self.ln_f(h))
        return logits


class LateTable(nn.Module):
    """Registers its modules in another order than it calls them, and uses a buffer and a parameter of its own."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, 3)
        self.shift = nn.Parameter(torch.randn(7))
        self.register_buffer("scale", torch.full((7,), 0.5))
        self.mid = nn.ModuleList(nn.Linear(7, 7) for _ in range(3))
        self.table = nn.Embedding(VOCABULARY, 7)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids).mean(1)
        for layer in self.mid:
            h = torch.tanh(layer(h)) + h
        result: Tensor = self.out(h * self.scale + self.shift)
        return result


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def picture_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return mse_loss(outputs, labels)


def pair_loss(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    return cross_entropy(outputs["logits"], labels) + outputs["similarity"].square().mean()


def mean_square(outputs: Tensor) -> Tensor:
    return outputs.square().mean()


def sentences(num_micro_batches: int, num_steps: int = 3, b: int = 8, t: int = 5) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)

    def batch() -> Batch:
        ids = torch.randint(VOCABULARY, (b, t), generator=generator)
        inputs = {"ids": ids, "padding": torch.cat([torch.ones(b, t - 1), torch.zeros(b, 1)], 1).long()}
        return batch_of(inputs, ids.roll(-1, 1), b, num_micro_batches)

    return [batch() for _ in range(num_steps)]


def images(num_micro_batches: int, num_steps: int = 3, b: int = 8) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)

    def batch() -> Batch:
        x = torch.randn(b, 3, 8, 8, generator=generator)
        return batch_of(x, x.mean(1, keepdim=True), b, num_micro_batches)

    return [batch() for _ in range(num_steps)]


def pairs(num_micro_batches: int, num_steps: int = 3, b: int = 8) -> list[Batch]:
    """A dict that is one argument: `Towers.forward(batch)`."""
    generator = torch.Generator().manual_seed(3)

    def batch() -> Batch:
        inputs: dict[str, Any] = {
            "user": torch.randn(b, 5, generator=generator),
            "item": torch.randn(b, 3, generator=generator),
        }
        return batch_of(inputs, torch.randint(4, (b,), generator=generator), b, num_micro_batches)

    return [batch() for _ in range(num_steps)]
