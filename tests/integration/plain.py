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


Sample = tuple[Any, Any]  # tensors, or dicts and tuples of them, and a label
Call = Callable[[nn.Module, Any], Any]


def batches(samples: Iterable[Sample], batch_size: int) -> Iterable[list[Sample]]:
    held: list[Sample] = []
    for sample in samples:
        held.append(sample)
        if len(held) == batch_size:
            yield held
            held = []
    if held:
        yield held


def train(
    build: Callable[[], nn.Module],
    source: Callable[[], Iterable[Sample]],
    loss: Callable[[Any, Tensor], Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    *,
    batch_size: int,
    micro_batches: int,
    epochs: int = 1,
    seed: int = 0,
    clip_norm: float | None = None,
    call: Call = nn.Module.__call__,
) -> PlainRun:
    """One thread, micro-batches in ascending order, each loss times its share of the rows, one update for a batch.

    `call` gives the inputs of a micro-batch to the model.
    """
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
                losses.append(_accumulate(model, batch, loss, micro_batch_rows(len(batch), micro_batches), call))
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
                update.step()
        return PlainRun(losses, dict(model.state_dict()))
    finally:
        torch.set_num_threads(threads)


def _accumulate(
    model: nn.Module, batch: Sequence[Sample], loss: Callable[[Any, Tensor], Tensor], rows: Sequence[int], call: Call
) -> float:
    inputs, labels = _stacked([row for row, _ in batch]), _stacked([label for _, label in batch])
    total, start = 0.0, 0
    for count in rows:
        share, end = count / len(batch), start + count
        value = loss(call(model, _cut(inputs, start, end)), _cut(labels, start, end))
        torch.autograd.backward(value * share)
        total += share * value.item()
        start = end
    return total


def _stacked(rows: Sequence[Any]) -> Any:
    first = rows[0]
    if isinstance(first, dict):
        return {name: _stacked([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(_stacked, zip(*rows, strict=True)))
    return torch.stack([torch.as_tensor(row) for row in rows])


def _cut(value: Any, start: int, end: int) -> Any:
    if isinstance(value, dict):
        return {name: _cut(each, start, end) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_cut(each, start, end) for each in value)
    return value[start:end]
