"""Small models of sequences of ids, each with one habit of real ones that a chain of layers cannot have.

Letters: b rows, t positions, d width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

D = 8
VOCABULARY = 13


def ids(b: int, t: int) -> Tensor:
    return torch.randint(VOCABULARY, (b, t))


class Block(nn.Module):
    """Pre-norm attention and feed-forward; `p` is the probability of dropout."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.attention = nn.MultiheadAttention(D, 2, dropout=p, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D), nn.Dropout(p))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.feed(x)


class TiedParameter(nn.Module):
    """The head's weight is the embedding's; the loss is made inside."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.wpe = nn.Embedding(64, D)
        self.drop = nn.Dropout(p)
        self.h = nn.ModuleList(Block(p) for _ in range(4))
        self.ln_f = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        t = x.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        h = self.drop(self.wte(x) + self.wpe(torch.arange(t, device=x.device)))
        for block in self.h:
            h = block(h, mask)
        return F.cross_entropy(self.lm_head(self.ln_f(h)).flatten(0, 1), labels.flatten())


class TiedFunctional(nn.Module):
    """The embedding's weight is used by an operation at the end, and a parameter of the root by one at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.position = nn.Parameter(torch.randn(64, D))
        self.h = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x) * math.sqrt(D) + self.position[: x.shape[1]]
        for block in self.h:
            h = block(h)
        return F.linear(h, self.wte.weight)


class Masked(nn.Module):
    """A mask of the inputs for every block, whose values decide a branch; a number as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, scale: float = 1.0) -> Any:
        t = input_ids.shape[1]
        bias = torch.zeros(t, t)
        if attention_mask is not None and not bool(attention_mask.all()):
            bias = bias + (attention_mask.sum(0) == 0) * -2.0
        h = self.wte(input_ids)
        for block in self.h:
            h = block(h, bias)
        return self.head(h) * scale


class Selected(nn.Module):
    """Sizes that depend on the values of an input: a slice up to the longest row, a mask that selects positions."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        longest = lengths.max()
        h = self.wte(x)[:, :longest]
        for block in self.h:
            h = block(h)
        keep = torch.arange(h.shape[1], device=x.device) < lengths[:, None]
        return self.head(h[keep])


class States(nn.Module):
    """Tuples between units."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.first = nn.LSTM(D, D, batch_first=True)
        self.second = nn.LSTM(D, D, batch_first=True)
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, x: Tensor) -> Any:
        h, state = self.first(self.wte(x))
        h, _ = self.second(h, state)
        return self.head(h)


class Cross(nn.Module):
    """Uses the memory twice, as keys and as values."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v, self.q = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return x + F.scaled_dot_product_attention(self.q(x), self.k(memory), self.v(memory))


class EncoderDecoder(nn.Module):
    """The encoder's output has many uses in each of several stages, and so has the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.encoder = nn.ModuleList(Block() for _ in range(2))
        self.decoder = nn.ModuleList(Cross() for _ in range(4))

    def forward(self, source: Tensor, target: Tensor) -> Any:
        memory = self.wte(source)
        for block in self.encoder:
            memory = block(memory)
        h = self.wte(target)
        for block in self.decoder:
            h = block(h, memory)
        return F.linear(h, self.wte.weight)


class Checkpointed(nn.Module):
    """Blocks checkpointed by the container, one of them together with an operation; dropout in all."""

    def __init__(self, is_checkpointed: bool = True) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(InnerCheckpoint(is_checkpointed) for _ in range(4))
        self.head = nn.Linear(D, VOCABULARY)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Any:
        h = F.dropout(self.wte(x), 0.2, self.training)
        for block in self.h:
            if self.is_checkpointed:
                h = checkpoint(lambda y, block=block: block(y) + y, h, use_reentrant=False)
            else:
                h = block(h) + h
            h = F.dropout(h, 0.1, self.training)
        return self.head(h)


class InnerCheckpoint(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.block = Block(0.2)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Any:
        if self.is_checkpointed:
            return checkpoint(self.block, x, use_reentrant=False)
        return self.block(x)
