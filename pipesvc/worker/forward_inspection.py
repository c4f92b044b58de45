"""Follows the forward of a model that is no list, so that it can be cut into stages.

What crosses a cut, and in which order units are called, shows only when forward runs. So it runs on shapes, with the
first micro-batch of the job's data: what is merely tried for a list must be read here. A model that cannot be followed
is reported with the reason, not refused, for it still trains as one stage; the coordinator, who knows how many there
will be, decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from torch import nn

from pipesvc.core import flow_json
from pipesvc.core.flow import Flow
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import malloc, skeleton
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.rpc.v1 import job_pb2
from pipesvc.worker import data_trial
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.feeder.batches import CutStep
from pipesvc.worker.inspection import Inspection
from pipesvc.worker.progress import ProgressReporter
from pipesvc.worker.user_errors import user_error

_NEEDS_BATCH: Final = "a model that is no list of layers is cut by its forward, which needs a first batch"


def follow(
    found: Inspection,
    job: job_pb2.JobSpec,
    build: Callable[[], Any],
    where: Where,
    progress: ProgressReporter,
    give_up: Callable[[], object],
) -> None:
    """Fills in `found`, whose one layer is the whole model: its units, and a flow or the reason.

    `give_up` is called on another thread when the source takes too long, and should end the process.
    """
    (whole,) = found.layers
    found.layers = [replace(whole, name=whole.type)]
    try:
        progress.busy("building the model on shapes")
        model = _skeleton(build, job.seed, where)
        found.layers = skeleton.inspect_units(model) or found.layers
        progress.busy("reading a first batch from the data source")
        found.batch = _first_batch(found, job, where, give_up)
        progress.busy("following the forward of the model")
        flow = _followed(model, found.batch.inputs[0], job.strategy.boundary_names, where)
    except PipesvcError as error:
        found.reason = error.at(where).details
    else:
        found.layers, found.flow_json = flow.units, flow_json.to_json(flow)


def _skeleton(build: Callable[[], Any], seed: int, where: Where) -> nn.Module:
    try:
        with malloc.while_building():
            return skeleton.build_module(build, seed, ())
    except PipesvcError:
        raise
    except Exception as cause:
        raise user_error(ErrorCode.BUILD_FAILED, "building the model", cause, where=where) from cause


def _first_batch(found: Inspection, job: job_pb2.JobSpec, where: Where, give_up: Callable[[], object]) -> CutStep:
    """What the run's own feeder would read first, within the time that it would give the source."""
    if job.data.is_streamed:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"{_NEEDS_BATCH}, and that of a stream is not known at submit",
            advice="Use a DataSource, or one stage (pipeline=False)",
        )

    def out_of_time() -> None:
        found.reason = PipesvcError(
            ErrorCode.DATA_SOURCE_TIMED_OUT,
            f"{_NEEDS_BATCH}, and none came within {job.data.timeout_s:g} s",
            advice="Make the source faster, or raise timeout_s of the data source",
            where=where,
        ).details
        give_up()

    timer = threading.Timer(job.data.timeout_s, out_of_time)
    timer.daemon = True
    timer.start()
    try:
        return data_trial.first_batch(job, where)
    except PipesvcError as error:
        message = f"{_NEEDS_BATCH}, and worker {where.worker!r} cannot read it: {error.details.message}"
        raise PipesvcError.of(replace(error.details, message=message)) from error.__cause__
    finally:
        timer.cancel()


def _followed(model: nn.Module, inputs: Any, cuts: Sequence[str], where: Where) -> Flow:
    args, kwargs = arguments_of(model.forward, inputs)
    try:
        return record(model, Inputs(args, kwargs), cuts=cuts)
    except PipesvcError:
        raise
    except Exception as cause:
        given = [*map(describe, args), *(f"{name}={describe(each)}" for name, each in kwargs.items())]
        doing = f"forward({', '.join(given)}) of {type(model).__name__}, on shapes alone"
        raise user_error(ErrorCode.STAGE_FAILED, doing, cause, where=where) from cause
