"""The unsplit side of `pipesvc verify`: a plain PyTorch loop over the first batches of a job.

It shares with a run what defines the numbers and nothing of what computes them: the rule that cuts a batch, the reading
of the source, and the seeds of the places that draw random numbers. Model, loss, backward and update are those of the
user and of torch; no stage, schedule, link or replay is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipesvc.client.job import DataSource, Job
from pipesvc.client.spec import make_submission
from pipesvc.client.weights_source import BY_NAME
from pipesvc.errors import Where
from pipesvc.model import skeleton
from pipesvc.model.batch_norm import RunningStatistics
from pipesvc.model.fingerprint import numeric_fingerprint
from pipesvc.model.keyed import KeyedBuild
from pipesvc.model.random_state import same_random_state_after
from pipesvc.model.sequence import named_parameters
from pipesvc.model.stage_builds import StageBuilds
from pipesvc.verification.plain_model import PlainModel, plain_model
from pipesvc.verification.plain_updates import PlainUpdates, called
from pipesvc.worker.feeder.batches import CutStep, cut_step
from pipesvc.worker.feeder.source import Reading, read


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainRun:
    """`losses` of the steps, and the state after the last, by name in the model's order.

    `fingerprint` says what its bits depend on.
    """

    losses: list[float]
    state: dict[str, Tensor]
    fingerprint: str


def plain_run(
    job: Job,
    *,
    num_steps: int,
    num_threads: int,
    random_modules: Collection[str],
    first_state: Mapping[str, Tensor] | None = None,
) -> PlainRun:
    """Train `num_steps` steps here, on the CPU; fewer where the data ends before.

    `random_modules` are the paths of the modules that draw random numbers, of a model that is no list. `first_state`
    has a tensor for each name of the model's state; None: it begins as it is built. Generators and threads are
    afterwards as they were.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with same_random_state_after():
            return _train(job, _steps(job, num_steps), random_modules, first_state)
    finally:
        torch.set_num_threads(before)


def _steps(job: Job, num_steps: int) -> list[CutStep]:
    """Read before the training, for the source draws from the same generators."""
    assert isinstance(job.data, DataSource)
    spec, where = make_submission(job).spec, Where()
    reading = Reading(
        data=spec.data,
        num_micro_batches=job.strategy.micro_batches,
        num_joined=job.accumulate,
        num_epochs=job.num_epochs,
        max_steps=num_steps,
        seed=job.seed,
        where=where,
    )
    weight = None if job.weight is None else called(job.weight)
    found = read(called(job.data.source), reading)
    return [cut_step(raw, reading.num_micro_batches, weight, where) for raw in found if raw is not None]


def _train(
    job: Job, steps: Sequence[CutStep], random_modules: Collection[str], first_state: Mapping[str, Tensor] | None
) -> PlainRun:
    layers = skeleton.whole(_model_of(job), job.seed)
    model = plain_model(layers, job.seed, random_modules)
    if first_state is not None:
        for name, tensor in model.state().items():
            tensor.copy_(first_state[name])
    updates = PlainUpdates(job, named_parameters(layers))
    modules = {path: module for name, layer in layers for path, module in layer.named_modules(prefix=name)}
    statistics = RunningStatistics(modules, is_deferred=job.batch_norm == "deferred")
    losses = []
    for number, step in enumerate(steps, 1):
        updates.begin(step.raw.epoch)
        losses.append(_accumulate(job, model, updates, statistics, number, step))
        updates.apply()
        statistics.commit()
    return PlainRun(losses=losses, state=model.state(), fingerprint=numeric_fingerprint({"cpu"}))


def _accumulate(
    job: Job, model: PlainModel, updates: PlainUpdates, statistics: RunningStatistics, number: int, step: CutStep
) -> float:
    """Forward and backward of each micro-batch, each counting by its share of the rows; the loss of the step."""
    loss_of = called(job.loss) if job.loss is not None else None
    dtype = {None: None, "bfloat16": torch.bfloat16, "float16": torch.float16}[job.autocast]
    total = 0.0
    for micro_batch, share in enumerate(step.shares):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            with statistics.counting():
                output = model.output(step.inputs[micro_batch], step=number, micro_batch=micro_batch)
            labels = () if step.labels is None else (step.labels[micro_batch],)
            loss = output if loss_of is None else loss_of(output, *labels)
        if share:
            torch.autograd.backward(updates.scaled(loss * share))
            total += share * loss.item()
    return total


def _model_of(job: Job) -> Callable[[], Any]:
    builds = [KeyedBuild(called(call)) if job.init == BY_NAME else called(call) for call in job.builders]
    return StageBuilds(builds) if len(builds) > 1 else builds[0]
