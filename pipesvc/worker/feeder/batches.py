"""What a mini-batch is on its way through the feeder, which batches are fit to train on, and which make a step.

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


@dataclass(kw_only=True, slots=True)
class RawStep:
    """The mini-batches of one update, which are of one epoch."""

    batches: tuple[RawBatch, ...]
    read_start_ns: int = 0
    read_end_ns: int = 0

    @property
    def epoch(self) -> int:
        return self.batches[0].epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class CutStep:
    """A step ready to be announced and sent: one entry per micro-batch in each list."""

    raw: RawStep
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


def cut_step(
    raw: RawStep,
    num_micro_batches: int,
    weight: Callable[[Any], Any] | None,
    where: Where,
    *,
    may_count_nothing: bool = False,
) -> CutStep:
    """Each mini-batch is cut by rows into so many micro-batches, and each of all these counts by its weight.

    That is evaluated for a whole mini-batch at once. A step in which no row counts is refused, unless it is a batch of
    those that are added up anyway.
    """
    inputs: list[Any] = []
    labels: list[Any] | None = None if raw.batches[0].labels is None else []
    all_rows: list[int] = []
    weights: list[float] = []
    for batch in raw.batches:
        rows = split.micro_batch_rows(batch.num_rows, num_micro_batches)
        inputs += collate.cut(batch.inputs, rows)
        if labels is not None:
            labels += collate.cut(batch.labels, rows)
        all_rows += rows
        weights += [float(count) for count in rows] if weight is None else _weights(batch, rows, weight, where)
    counts_nothing = may_count_nothing and not any(weights)
    return CutStep(
        raw=raw,
        inputs=inputs,
        labels=labels,
        rows=tuple(all_rows),
        shares=(0.0,) * len(weights) if counts_nothing else split.shares(weights),
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
    """Lets the batches of one epoch through that are fit to train on, `num_joined` of them as one step.

    The last step of an epoch has what is left.
    """

    num_micro_batches: int
    num_joined: int = 1
    drops_last: bool
    # Rows of a full batch; 0: as many as the first one has.
    full_rows: int
    _held: list[RawBatch] = field(default_factory=list)
    _joining: list[RawBatch] = field(default_factory=list)

    def push(self, batch: RawBatch) -> list[RawStep]:
        """The steps that are whole now that this batch has come."""
        return self._join(self._passed(batch))

    def end(self) -> list[RawStep]:
        """The epoch is over: what was held back was its last batch."""
        held, self._held = self._held, []
        if self.drops_last:
            held = [each for each in held if each.num_rows >= self.full_rows]
        steps = self._join(held)
        rest, self._joining = self._joining, []
        return [*steps, RawStep(batches=tuple(rest))] if rest else steps

    def _join(self, batches: list[RawBatch]) -> list[RawStep]:
        steps = []
        for batch in batches:
            self._joining.append(batch)
            if len(self._joining) == self.num_joined:
                steps.append(RawStep(batches=tuple(self._joining)))
                self._joining = []
        return steps

    def _passed(self, batch: RawBatch) -> list[RawBatch]:
        held, self._held = self._held, []
        for each in held:
            self._check(each)
        self.full_rows = self.full_rows or batch.num_rows
        is_short = batch.num_rows < self.num_micro_batches
        if is_short or (self.drops_last and batch.num_rows < self.full_rows):
            self._held = [batch]
            return held
        return [*held, batch]

    def _check(self, batch: RawBatch) -> None:
        if batch.num_rows < self.num_micro_batches:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"a batch of {batch.num_rows} rows, not the last of its epoch, cannot be cut into "
                f"{self.num_micro_batches} micro-batches",
                advice=f"Use micro_batches={batch.num_rows} or fewer, or batches of {self.num_micro_batches} rows",
            )
