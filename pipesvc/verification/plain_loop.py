"""The unsplit side of `pipesvc verify`: a plain PyTorch loop over the first batches of a job.

It shares with a run what defines the numbers and nothing of what computes them: the rule that cuts a batch, the reading
of the source, and the seeds of the places that draw random numbers. Model, loss, backward and update are those of the
user and of torch; no stage, schedule, link or replay is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.client.calls import Call, as_call
from pipesvc.client.job import DataSource, Job
from pipesvc.client.spec import make_submission
from pipesvc.errors import Where
from pipesvc.model import skeleton
from pipesvc.model.fingerprint import numeric_fingerprint
from pipesvc.model.random_state import same_random_state_after
from pipesvc.verification.plain_model import PlainModel, plain_model
from pipesvc.worker.feeder.batches import CutBatch, cut_batch
from pipesvc.worker.feeder.source import Reading, read


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainRun:
    """`losses` of the steps, and the state after the last, by name in the model's order.

    `fingerprint` says what its bits depend on.
    """

    losses: list[float]
    state: dict[str, Tensor]
    fingerprint: str


def plain_run(job: Job, *, num_steps: int, num_threads: int, random_modules: Collection[str]) -> PlainRun:
    """Train `num_steps` steps here, on the CPU; fewer where the data ends before.

    `random_modules` are the paths of the modules that draw random numbers, of a model that is no list. Generators and
    threads are afterwards as they were.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with same_random_state_after():
            return _train(job, _batches(job, num_steps), random_modules)
    finally:
        torch.set_num_threads(before)


def _batches(job: Job, num_steps: int) -> list[CutBatch]:
    """Read before the training, for the source draws from the same generators."""
    assert isinstance(job.data, DataSource)
    spec, where = make_submission(job).spec, Where()
    reading = Reading(
        data=spec.data,
        num_micro_batches=job.strategy.micro_batches,
        num_epochs=job.num_epochs,
        max_steps=num_steps,
        seed=job.seed,
        where=where,
    )
    weight = None if job.weight is None else _called(job.weight)
    return [cut_batch(raw, reading.num_micro_batches, weight, where) for raw in read(_called(job.data.source), reading)]


def _train(job: Job, batches: Sequence[CutBatch], random_modules: Collection[str]) -> PlainRun:
    model = plain_model(skeleton.whole(_called(job.model), job.seed), job.seed, random_modules)
    parameters = [each for each in model.module.parameters() if each.requires_grad]
    optimizer = _called(job.optimizer)(parameters)
    losses = []
    for step, batch in enumerate(batches, 1):
        optimizer.zero_grad(set_to_none=True)
        losses.append(_accumulate(job, model, step, batch))
        if job.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, job.clip_norm)
        optimizer.step()
    return PlainRun(losses=losses, state=model.state(), fingerprint=numeric_fingerprint({"cpu"}))


def _accumulate(job: Job, model: PlainModel, step: int, batch: CutBatch) -> float:
    """Forward and backward of each micro-batch, each counting by its share of the rows; the loss of the step."""
    loss_of = _called(job.loss) if job.loss is not None else None
    total = 0.0
    for micro_batch, share in enumerate(batch.shares):
        output = model.output(batch.inputs[micro_batch], step=step, micro_batch=micro_batch)
        labels = () if batch.labels is None else (batch.labels[micro_batch],)
        loss = output if loss_of is None else loss_of(output, *labels)
        if share:
            (loss * share).backward()
            total += share * loss.item()
    return total


def _called(call: Callable[..., Any] | Call) -> Callable[..., Any]:
    """The function with the arguments that the job gives it."""
    found = as_call(call, what="function")
    return partial(found.function, **found.arguments)
