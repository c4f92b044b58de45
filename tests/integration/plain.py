"""The truth: the same training in one process, with nothing of pipesvc but its rule for cutting a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core.split import micro_batch_rows


@dataclass(frozen=True)
class PlainRun:
    losses: list[float]
    weights: dict[str, Tensor]


def batches(samples: Iterable[tuple[Tensor, Tensor]], batch_size: int) -> Iterable[list[tuple[Tensor, Tensor]]]:
    held: list[tuple[Tensor, Tensor]] = []
    for sample in samples:
        held.append(sample)
        if len(held) == batch_size:
            yield held
            held = []
    if held:
        yield held


def train(
    build: Callable[[], nn.Sequential],
    source: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    *,
    batch_size: int,
    micro_batches: int,
    epochs: int = 1,
    seed: int = 0,
    clip_norm: float | None = None,
) -> PlainRun:
    """One thread, micro-batches in ascending order, each loss times its share of the rows, one update for a batch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        model = build()
        update = optimizer(model.parameters())
        losses = []
        for _ in range(epochs):
            for batch in batches(source(), batch_size):
                update.zero_grad(set_to_none=True)
                losses.append(_accumulate(model, batch, loss, micro_batch_rows(len(batch), micro_batches)))
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
                update.step()
        return PlainRun(losses, dict(model.state_dict()))
    finally:
        torch.set_num_threads(threads)


def _accumulate(
    model: nn.Module,
    batch: Sequence[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    rows: Sequence[int],
) -> float:
    inputs = torch.stack([row for row, _ in batch])
    labels = torch.stack([torch.as_tensor(label) for _, label in batch])
    total = 0.0
    for x, y, count in zip(torch.split(inputs, list(rows)), torch.split(labels, list(rows)), rows, strict=True):
        share = count / len(batch)
        value = loss(model(x), y)
        torch.autograd.backward(value * share)
        total += share * value.item()
    return total
