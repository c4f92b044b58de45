"""Tries the first micro-batch in the model when a job is submitted, so that sizes that do not fit are told at once.

Of a job with an evaluation, the first one of its data too, with the metrics: else they are first asked hours later.

Only the truth is told: the layers are the real ones, the rows are the source's own, and what cannot be tried here (a
stream, a large model, a source that is slow) is left to the first step, which names the same fault. What fails on this
host may not fail on the one that the plan gives the layer to, so the coordinator, who knows the plan, decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from pipesvc.core.layer_info import LayerInfo
from pipesvc.errors import ErrorDetails, PipesvcError, Where
from pipesvc.model import sequence, skeleton
from pipesvc.rpc.v1 import job_pb2, local_pb2
from pipesvc.wire import tree
from pipesvc.wire.links import FEEDER
from pipesvc.worker import calls
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.optimizing import Updates
from pipesvc.worker.executor.parts import uncut_program
from pipesvc.worker.executor.precision import autocast_dtype
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.feeder.batches import CutStep, cut_step
from pipesvc.worker.feeder.source import Reading, evaluation_reading, read
from pipesvc.worker.inspection import Inspection
from pipesvc.worker.progress import ProgressReporter

# A model up to this size is built whole for the trial; the workers of larger ones need their memory.
MAX_MODEL_BYTES: Final = 128 << 20
# Source, build and forward together. Every submission waits for it.
TRIAL_LIMIT_S: Final = 3.0

_log = logging.getLogger("pipesvc.inspector")


def find_misfit(
    found: Inspection, job: job_pb2.JobSpec, where: Where, progress: ProgressReporter, give_up: Callable[[], object]
) -> local_pb2.DataMisfit | None:
    """What the first micro-batch meets in the model; None: it fits, or was not tried.

    User code runs on this thread, the main one, as it will in the run; `give_up` is called on another one when the
    time is over, and should end the process.
    """
    has_rows = not job.data.is_streamed or job.HasField("evaluation")
    if not has_rows or found.model_bytes > MAX_MODEL_BYTES:
        return None
    timer = threading.Timer(TRIAL_LIMIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        return _try(found, job, where, progress)
    except BaseException as error:  # user code may raise anything, and the run itself will tell it with its place
        _log.info("the first batch was not tried in the model: %s: %s", type(error).__name__, error)
        return None
    finally:
        timer.cancel()


def _try(
    found: Inspection, job: job_pb2.JobSpec, where: Where, progress: ProgressReporter
) -> local_pb2.DataMisfit | None:
    batch = found.batch
    if batch is None and not job.data.is_streamed:
        progress.busy("reading a first batch from the data source, to try it")
        try:
            batch = first_batch(job, where)
        except PipesvcError as error:
            return _misfit(error.details)
    progress.busy("trying the first micro-batch in the model")
    layers = skeleton.whole(calls.bind_model(job, where), job.seed)
    reached: list[int] = []
    for index, layer in _watched(layers, found.layers):
        layer.register_forward_pre_hook(partial(_note, reached, index))
    stage = _whole_stage(layers, job, where)
    misfit = None
    if batch is not None:
        misfit = _tried(partial(_forward, stage, batch, job), "the first micro-batch", reached, where)
    if misfit is not None or not job.HasField("evaluation"):
        return misfit
    progress.busy("trying the first micro-batch of the evaluation data, and the metrics")
    try:
        batch = _first_evaluated(job, where)
    except PipesvcError as error:
        return _misfit(error.details)
    reached.clear()
    return _tried(partial(_evaluate, stage, batch), "the first micro-batch of the evaluation data", reached, where)


def _tried(run: Callable[[], object], what: str, reached: Sequence[int], where: Where) -> local_pb2.DataMisfit | None:
    try:
        run()
    except PipesvcError as error:
        if isinstance(error.__cause__, MemoryError):
            raise  # no worker will hold all layers
        details = error.at(where).details
        message = f"tried before the start, {what} does not pass the model: {details.message}"
        details = replace(details, message=message, where=replace(details.where, step=None, stage=None))
        return _misfit(details, layer=reached[-1] if reached else 0)
    return None


def _misfit(details: ErrorDetails, *, layer: int | None = None) -> local_pb2.DataMisfit:
    from pipesvc.net import reports  # late: it imports gRPC, of which the nursery must stay free

    return local_pb2.DataMisfit(error=reports.to_message(details), layer=layer)


def _watched(layers: Sequence[sequence.NamedLayer], infos: Sequence[LayerInfo]) -> Iterator[tuple[int, nn.Module]]:
    """Each layer, or unit of the one module, with its index."""
    if layers[0][0]:
        yield from enumerate(layer for _, layer in layers)
        return
    modules = dict(layers[0][1].named_modules())
    yield from ((index, modules[info.name]) for index, info in enumerate(infos) if info.name in modules)


def _note(reached: list[int], index: int, _layer: nn.Module, _inputs: Any) -> None:
    reached.append(index)


def first_batch(job: job_pb2.JobSpec, where: Where) -> CutStep:
    """What the job's source gives first, as a run would cut it."""
    reading = Reading(
        data=job.data,
        num_micro_batches=job.strategy.micro_batches,
        num_epochs=1,
        max_steps=1,
        seed=job.seed,
        where=where,
    )
    raw = next(filter(None, read(calls.bind(job.data.source, "the data source", where), reading)))
    return cut_step(raw, reading.num_micro_batches, calls.bind_weight(job, where), where)


def _first_evaluated(job: job_pb2.JobSpec, where: Where) -> CutStep:
    """The same of the evaluation data, which must be a source of its own."""
    reading = evaluation_reading(job, where)
    raw = next(filter(None, read(calls.bind(reading.data.source, reading.name, where), reading)))
    weight = calls.bind_weight(job, where)
    return cut_step(raw, job.evaluation.micro_batches, weight, where, may_count_nothing=True)


def _whole_stage(layers: Sequence[sequence.NamedLayer], job: job_pb2.JobSpec, where: Where) -> Stage:
    """That of a run of one stage."""
    spec = StageSpec(
        index=0,
        num_stages=1,
        first_layer=0,
        device=torch.device("cpu"),
        seed=0,
        loss=calls.bind_loss(job, where),
        check_finite=False,
        metrics=calls.bind_metrics(job, where),
        autocast=autocast_dtype(job.autocast),
        defers_batch_norm=job.defers_batch_norm,
    )
    return Stage(spec, uncut_program(spec, layers), lambda _: Updates())


def _forward(stage: Stage, batch: CutStep, job: job_pb2.JobSpec) -> None:
    """What a run does with its first micro-batch."""
    if job.is_prediction:
        _to_eval_mode(stage)
        stage.predict(1, 0, _inputs(batch, 0))
    else:
        stage.forward(1, 0, _inputs(batch, 0), _labels(batch, 0), batch.shares[0])


def _evaluate(stage: Stage, batch: CutStep) -> None:
    """What an evaluation does with its first one that counts; raises what the first metric meets that fails."""
    _to_eval_mode(stage)
    index = next((index for index, share in enumerate(batch.shares) if share), 0)
    stage.evaluate(1, index, _inputs(batch, index), _labels(batch, index), batch.shares[index])
    for failure in stage.take_failures():
        raise failure


def _to_eval_mode(stage: Stage) -> None:
    for root in stage.roots().values():
        root.eval()


def _inputs(batch: CutStep, index: int) -> dict[int, Parcel]:
    return {FEEDER: parcel_of(batch.inputs[index])}


def _labels(batch: CutStep, index: int) -> Parcel | None:
    return None if batch.labels is None else parcel_of(batch.labels[index])


def parcel_of(value: Any) -> Parcel:
    """The value as it would arrive at a stage of the same process."""
    structure, leaves = tree.flatten(value, lambda leaf: isinstance(leaf, Tensor))
    requires_grad = tuple(leaf.requires_grad for leaf in leaves)
    return Parcel(leaves=tuple(leaves), requires_grad=requires_grad, structure=structure, is_local=True)
