"""The user's data source, read as the mini-batches of steps, epoch after epoch.

No end-of-data exception reaches anyone: the source function is called again for each epoch, with torch, numpy and
Python seeded from the job's seed and the epoch, so that a run does not depend on what was drawn before. This module
is a plain generator; `reader` runs it on a thread.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from pipesvc.core import seeds, split
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, types_pb2
from pipesvc.wire import collate
from pipesvc.worker.feeder.batches import Gate, RawStep, raw_batch
from pipesvc.worker.user_errors import user_error

_NUMPY_SEED_BITS: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the source is read. `num_epochs` 0: until `max_steps`; `max_steps` 0: all epochs whole; both count from the
    beginning of the training, of which `start` is done."""

    data: job_pb2.DataSpec
    num_micro_batches: int  # of a mini-batch
    num_joined: int = 1  # mini-batches of a step
    num_epochs: int
    max_steps: int
    seed: int
    where: Where
    name: str = "the data source"
    start: types_pb2.Position = field(default_factory=types_pb2.Position)

    def gate(self) -> Gate:
        return Gate(
            num_micro_batches=self.num_micro_batches,
            num_joined=self.num_joined,
            drops_last=self.data.drop_last,
            full_rows=self.data.batch_size if self.data.yields != job_pb2.YIELDS_BATCH else 0,
        )


def evaluation_reading(job: job_pb2.JobSpec, where: Where) -> Reading:
    """One evaluation's: all of its data once, in batches that are cut later."""
    return Reading(
        data=job.evaluation.data,
        num_micro_batches=1,
        num_epochs=1,
        max_steps=0,
        seed=job.seed,
        where=where,
        name="the evaluation data source",
    )


def read(source: Callable[[], Any], reading: Reading) -> Iterator[RawStep | None]:
    """Every step of the run, in order; None: a batch has come, but no step is whole yet, or it is done.

    What the source raises comes out as DATA_SOURCE_FAILED.
    """
    if reading.data.batch_size:
        split.check_batch_size(reading.data.batch_size, reading.num_micro_batches)
    start = reading.start
    epochs = range(start.epoch, reading.num_epochs) if reading.num_epochs else itertools.count(start.epoch)
    steps = itertools.chain.from_iterable(_rest(source, epoch, reading) for epoch in epochs)
    num_steps = start.step
    for step in steps:
        yield step
        if step is not None:
            num_steps += 1
            if num_steps == reading.max_steps:
                return


def _rest(source: Callable[[], Any], epoch: int, reading: Reading) -> Iterator[RawStep | None]:
    """What of an epoch is not done: one that was broken off is read from its beginning, as its source gives it."""
    num_done = reading.start.steps_in_epoch if epoch == reading.start.epoch else 0
    num_left = num_done
    for step in _epoch(source, epoch, reading):
        is_done = step is not None and num_left > 0
        num_left -= is_done
        yield None if is_done else step
    if num_left:
        found = f"{reading.name} gave {num_done - num_left} steps in epoch {epoch}"
        raise PipesvcError(
            ErrorCode.DATA_SOURCE_FAILED,
            f"{found}, and the checkpoint stands after {num_done}",
            advice="Go on with the very source of the checkpoint, or begin anew with its weights: init=",
            where=reading.where,
        )


def seed_everything(seed: int, epoch: int) -> None:
    derived = seeds.derive(seed, "data", epoch)
    torch.manual_seed(derived)
    random.seed(derived)
    np.random.seed(derived % 2**_NUMPY_SEED_BITS)


def _epoch(source: Callable[[], Any], epoch: int, reading: Reading) -> Iterator[RawStep | None]:
    try:
        seed_everything(reading.seed, epoch)
        gate = reading.gate()
        num_steps = 0
        for value in _batch_values(_iterated(source()), reading.data):
            steps = gate.push(raw_batch(epoch, value, reading.data.has_labels))
            num_steps += len(steps)
            yield from steps
            if not steps:
                yield None
        steps = gate.end()
        num_steps += len(steps)
        yield from steps
    except PipesvcError as error:
        raise error.at(reading.where) from error.__cause__
    except Exception as cause:
        doing = f"{reading.name} in epoch {epoch}"
        raise user_error(ErrorCode.DATA_SOURCE_FAILED, doing, cause, where=reading.where) from cause
    if not num_steps:
        raise PipesvcError(
            ErrorCode.DATA_SOURCE_FAILED,
            f"{reading.name} gave no batch in epoch {epoch}",
            advice="The source function is called once for each epoch and must give a fresh iterable each time",
            where=reading.where,
        )


def _iterated(given: Any) -> Iterable[Any]:
    """What the source function returned: a generator, an iterable, a DataLoader, or a map-style Dataset."""
    if hasattr(type(given), "__iter__"):
        found: Iterable[Any] = given
        return found
    if hasattr(type(given), "__getitem__") and hasattr(type(given), "__len__"):
        return (given[index] for index in range(len(given)))
    raise PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"the data source returned a {type(given).__name__}, which cannot be iterated",
        advice="Return a generator, an iterable, a Dataset or a DataLoader",
    )


def _batch_values(items: Iterable[Any], data: job_pb2.DataSpec) -> Iterator[Any]:
    """Each item that makes a batch as one tree of rows."""
    if data.yields == job_pb2.YIELDS_BATCH:
        yield from items
        return
    if data.yields == job_pb2.YIELDS_SAMPLE_LIST:
        lists: Iterable[list[Any]] = map(_sample_list, items)
    else:
        lists = _lists_of(items, data.batch_size)
    for samples in lists:
        yield collate.stacked(samples)


def _lists_of(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while samples := list(itertools.islice(iterator, size)):
        yield samples


def _sample_list(item: Any) -> list[Any]:
    if isinstance(item, list | tuple) and item:
        return list(item)
    what = "an empty list" if isinstance(item, list | tuple) else f"a {type(item).__name__}"
    raise PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"the data source gave {what} where a list of samples is due",
        advice="Yield one list of samples per batch, or change yields",
    )
