"""The truth: the same training in one process, with nothing of pipesvc but its rule for cutting a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pipesvc.core.split import micro_batch_rows


@dataclass(frozen=True)
class PlainRun:
    losses: list[float]
    weights: dict[str, Tensor]


Sample = tuple[Any, Any]  # tensors, or dicts and tuples of them, and a label
T = TypeVar("T")
Call = Callable[[nn.Module, Any], Any]


def batches(samples: Iterable[T], batch_size: int) -> Iterable[list[T]]:
    held: list[T] = []
    for sample in samples:
        held.append(sample)
        if len(held) == batch_size:
            yield held
            held = []
    if held:
        yield held


@dataclass(frozen=True, kw_only=True)
class PlainLoop:
    """One thread, micro-batches in ascending order, each loss times its share of the rows, one update for a batch.

    `make_optimizers` gets the model, and groups its parameters by hand. `call` gives the inputs of a micro-batch to
    the model.
    """

    build: Callable[[], nn.Module]
    source: Callable[[], Iterable[Sample]]
    loss: Callable[[Any, Tensor], Tensor]
    make_optimizers: Callable[[nn.Module], Sequence[torch.optim.Optimizer]]
    batch_size: int = 8
    micro_batches: int = 4
    accumulate: int = 1
    epochs: int = 1
    seed: int = 7
    clip_norm: float | None = None
    clip_value: float | None = None
    autocast: torch.dtype | None = None
    init_scale: float | None = None  # None: losses are not scaled
    make_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    is_by_epoch: bool = False
    call: Call = nn.Module.__call__

    def run(self) -> PlainRun:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._run()
        finally:
            torch.set_num_threads(threads)

    def _run(self) -> PlainRun:
        torch.manual_seed(self.seed)
        model = self.build()
        optimizers = self.make_optimizers(model)
        schedulers = [self.make_scheduler(each) for each in optimizers] if self.make_scheduler is not None else []
        scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale or 1.0, enabled=self.init_scale is not None)
        losses = []
        for _ in range(self.epochs):
            for step in batches(batches(self.source(), self.batch_size), self.accumulate):
                losses.append(self._accumulate(model, step, scaler))
                self._update(model, optimizers, scaler)
                for scheduler in () if self.is_by_epoch else schedulers:
                    scheduler.step()
            for scheduler in schedulers if self.is_by_epoch else ():
                scheduler.step()
        return PlainRun(losses, dict(model.state_dict()))

    def _accumulate(self, model: nn.Module, step: Sequence[Sequence[Sample]], scaler: torch.amp.GradScaler) -> float:
        num_rows, total = sum(map(len, step)), 0.0
        for batch in step:
            inputs, labels = _stacked([row for row, _ in batch]), _stacked([label for _, label in batch])
            start = 0
            for count in micro_batch_rows(len(batch), self.micro_batches):
                share, end = count / num_rows, start + count
                with torch.autocast("cpu", dtype=self.autocast, enabled=self.autocast is not None):
                    value = self.loss(self.call(model, _cut(inputs, start, end)), _cut(labels, start, end))
                torch.autograd.backward(scaler.scale(value * share))
                total += share * value.item()
                start = end
        return total

    def _update(
        self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], scaler: torch.amp.GradScaler
    ) -> None:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), self.clip_value)
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        scaler.update()


def train(
    build: Callable[[], nn.Module],
    source: Callable[[], Iterable[Sample]],
    loss: Callable[[Any, Tensor], Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    *,
    seed: int = 0,
    **options: Any,
) -> PlainRun:
    """With one optimizer over all parameters; the options are those of `PlainLoop`."""
    loop = PlainLoop(
        build=build,
        source=source,
        loss=loss,
        make_optimizers=lambda model: [optimizer(model.parameters())],
        seed=seed,
        **options,
    )
    return loop.run()


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
