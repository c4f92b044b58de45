"""What a mini-batch is on its way through the feeder, and which batches are fit to train on.

Only the last batch of an epoch may have fewer rows than there are micro-batches, and a source that yields whole
batches does not say which one is the last: such a batch is held back until the next one, or the end, has come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pipesvc.core import split
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.wire import collate
from pipesvc.worker.user_errors import user_error


@dataclass(kw_only=True, slots=True)
class RawBatch:
    """One mini-batch as the source gave it. `labels` is None where the job has none."""

    epoch: int
    inputs: Any
    labels: Any
    num_rows: int
    read_start_ns: int = 0
    read_end_ns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CutBatch:
    """A mini-batch ready to be announced and sent: one entry per micro-batch in each list."""

    raw: RawBatch
    inputs: list[Any]
    labels: list[Any] | None
    rows: tuple[int, ...]
    shares: tuple[float, ...]
    weight: float
    """The sum of the weights of its rows."""


def raw_batch(epoch: int, value: Any, has_labels: bool) -> RawBatch:
    """A batch from a tree of rows: the inputs alone, or a pair of inputs and labels."""
    inputs, labels = collate.split_pair(value) if has_labels else (value, None)
    return RawBatch(epoch=epoch, inputs=inputs, labels=labels, num_rows=collate.num_rows(inputs, labels))


def cut_batch(
    raw: RawBatch,
    num_micro_batches: int,
    weight: Callable[[Any], Any] | None,
    where: Where,
    *,
    may_count_nothing: bool = False,
) -> CutBatch:
    """Cut by rows; each micro-batch counts by its weight, which is evaluated for the whole mini-batch at once.

    A batch in which no row counts is refused, unless it is one of those that are added up anyway.
    """
    rows = split.micro_batch_rows(raw.num_rows, num_micro_batches)
    weights = [float(count) for count in rows] if weight is None else _weights(raw, rows, weight, where)
    return CutBatch(
        raw=raw,
        inputs=collate.cut(raw.inputs, rows),
        labels=None if raw.labels is None else collate.cut(raw.labels, rows),
        rows=rows,
        shares=(0.0,) * len(rows) if may_count_nothing and not any(weights) else split.shares(weights),
        weight=sum(weights),
    )


def _weights(raw: RawBatch, rows: tuple[int, ...], weight: Callable[[Any], Any], where: Where) -> list[float]:
    try:
        with torch.no_grad():
            numbers = torch.as_tensor(weight(raw.labels)).to(torch.float64)
    except Exception as cause:
        raise user_error(ErrorCode.DATA_SOURCE_FAILED, "the weight function", cause, where=where) from cause
    if tuple(numbers.shape) != (raw.num_rows,):
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the weight function gave numbers of shape {tuple(numbers.shape)} for a batch of {raw.num_rows} rows",
            advice="It gets the labels of the whole batch and returns one number per row",
            where=where,
        )
    return [part.sum().item() for part in torch.split(numbers, list(rows))]


@dataclass(kw_only=True, slots=True)
class Gate:
    """Lets the batches of one epoch through that are fit to train on."""

    num_micro_batches: int
    drops_last: bool
    # Rows of a full batch; 0: as many as the first one has.
    full_rows: int
    _held: list[RawBatch] = field(default_factory=list)

    def push(self, batch: RawBatch) -> list[RawBatch]:
        """The batches that may go on now that this one has come."""
        held, self._held = self._held, []
        for each in held:
            self._check(each)
        self.full_rows = self.full_rows or batch.num_rows
        is_short = batch.num_rows < self.num_micro_batches
        if is_short or (self.drops_last and batch.num_rows < self.full_rows):
            self._held = [batch]
            return held
        return [*held, batch]

    def end(self) -> list[RawBatch]:
        """The epoch is over: what was held back was its last batch."""
        held, self._held = self._held, []
        if self.drops_last:
            return [each for each in held if each.num_rows >= self.full_rows]
        return held

    def _check(self, batch: RawBatch) -> None:
        if batch.num_rows < self.num_micro_batches:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"a batch of {batch.num_rows} rows, not the last of its epoch, cannot be cut into "
                f"{self.num_micro_batches} micro-batches",
                advice=f"Use micro_batches={batch.num_rows} or fewer, or batches of {self.num_micro_batches} rows",
            )
