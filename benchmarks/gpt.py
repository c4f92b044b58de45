"""A plain GPT and one batch of random tokens, so that all contenders do the same work.

It stands apart from everything else here because it travels to pipesvc's workers, where a file brings all that it
imports. b rows, t tokens of context, d width, h heads, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Embed(nn.Module):
    """Token ids (b, t) to vectors (b, t, d)."""

    def __init__(self, vocabulary: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return embedded


class Block(nn.Module):
    """Causal self-attention and a feed-forward net, each added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        packed = self.query_key_value(self.norm_attention(x)).view(b, t, 3, self.num_heads, d // self.num_heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(b, t, d))
        fed: Tensor = x + self.narrow(F.gelu(self.widen(self.norm_feed(x))))
        return fed


class Head(nn.Module):
    """Vectors (b, t, d) to a score for each token of the vocabulary (b, t, v)."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.norm(x))
        return scores


def build_model(vocabulary: int, width: int, num_heads: int, num_blocks: int, context: int) -> nn.Sequential:
    blocks = [Block(width, num_heads) for _ in range(num_blocks)]
    return nn.Sequential(Embed(vocabulary, width, context), *blocks, Head(vocabulary, width))


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())


def random_batch(num_rows: int, context: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ids and targets, each (b, t)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary, (num_rows, context), generator=generator)
    return ids, torch.randint(vocabulary, (num_rows, context), generator=generator)


def same_batch_for_ever(num_rows: int, context: int, vocabulary: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A source that costs nothing, as the other contenders have their batch in memory."""
    batch = random_batch(num_rows, context, vocabulary, seed)
    while True:
        yield batch
