"""Models of which one thing is large: what crosses a boundary, the time of a device, or nothing at all.

Apart from the measuring, because this file travels to pipesvc's workers with all that it imports. Each takes token
ids (b, t) as the GPT does, so that contenders differ in the model alone. b rows, t tokens, d width, v vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.gpt import Embed, Head, random_batch
from benchmarks.sleeping import Pause


class Residual(nn.Module):
    """A linear layer that is added to its input, (b, t, d): little arithmetic for each byte of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.linear(x)
        return added


def build_thin(vocabulary: int, width: int, num_layers: int, context: int) -> nn.Sequential:
    layers = [Residual(width) for _ in range(num_layers)]
    return nn.Sequential(Embed(vocabulary, width, context), *layers, Head(vocabulary, width))


def _asleep(x: Tensor, forward_s: float) -> Tensor:
    """The identity, and the time that a device would take: once forward, twice backward."""
    slept: Tensor = Pause.apply(x, forward_s, 2 * forward_s)  # type: ignore[no-untyped-call]
    return slept


class AsleepFirst(nn.Module):
    """Makes (b, t, d) of ids (b, t), which it does not read; the memory is really written, as after a device."""

    def __init__(self, width: int, context: int, forward_s: float) -> None:
        super().__init__()
        self.row, self.forward_s = nn.Parameter(torch.ones(context, width)), forward_s

    def forward(self, ids: Tensor) -> Tensor:
        return _asleep(self.row.expand(ids.shape[0], -1, -1).contiguous(), self.forward_s)


class AsleepLast(nn.Module):
    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.scale, self.forward_s = nn.Parameter(torch.ones(1)), forward_s

    def forward(self, x: Tensor) -> Tensor:
        return _asleep(x, self.forward_s) * self.scale


def build_asleep(width: int, context: int, forward_s: float) -> nn.Sequential:
    return nn.Sequential(AsleepFirst(width, context, forward_s), AsleepLast(forward_s))


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Reads no targets; they are there because every contender sends them."""
    return outputs.mean()


class Scale(nn.Module):
    """One parameter, so that it has an update; its arithmetic takes microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.float() * self.scale


def build_empty(num_layers: int) -> nn.Sequential:
    return nn.Sequential(*(Scale() for _ in range(num_layers)))


def batches_of(num_rows: int, context: int, vocabulary: int, pid_file: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Random ones for ever; says which process reads them, for a feeder's command line is that of an executor."""
    Path(pid_file).write_text(str(os.getpid()))
    seed = 0
    while True:
        seed += 1
        yield random_batch(num_rows, context, vocabulary, seed)
