"""Looks at a job before its run starts, on one worker, so that what cannot work is refused at submit.

The skeleton is built on the meta device: layers, marks and bytes are known without a byte of parameters. Every other
function of the job is imported too, for a missing package is the most frequent mistake; and a micro-batch of the
data is tried in the model where that costs little.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from pipesvc.core.plan import LayerInfo
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import skeleton
from pipesvc.rpc.v1 import job_pb2, local_pb2
from pipesvc.worker import calls, data_trial
from pipesvc.worker.executor.main import optimizer_maker
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.progress import ProgressReporter
from pipesvc.worker.user_errors import user_error

_log = logging.getLogger("pipesvc.inspector")


def run(port: PortLike, assignment: local_pb2.Assignment) -> None:
    """Report the layers, or raise what is wrong with the job."""
    where = calls.place_of(assignment)
    job = assignment.job
    torch.set_num_threads(1)
    progress = ProgressReporter(port)
    progress.busy("inspecting")
    build = calls.bind(job.model, "the model", where)
    calls.bind_loss(job, where)
    calls.bind_weight(job, where)
    _try_optimizer(calls.bind(job.optimizer, "the optimizer", where), where)
    if not job.data.is_streamed:
        calls.bind(job.data.source, "the data source", where)
    try:
        layers = skeleton.inspect_layers(build, is_whole=is_one_stage(job))
    except PipesvcError as error:
        raise error.at(where) from error.__cause__
    except Exception as cause:
        raise user_error(ErrorCode.BUILD_FAILED, "building the model", cause, where=where) from cause
    inspected = local_pb2.Inspected(layers=map(layer_message, layers), is_trying=True)
    port.report(local_pb2.FromChild(inspected=inspected))
    inspected.is_trying = False

    def give_up() -> None:
        _log.info("the first batch did not pass the model within %g s: the first step tells", data_trial.TRIAL_LIMIT_S)
        port.report(local_pb2.FromChild(inspected=inspected))
        sys.stdout.flush()
        os._exit(0)

    model_bytes = sum(layer.parameter_bytes + layer.buffer_bytes for layer in layers)
    misfit = data_trial.find_misfit(job, model_bytes, where, progress, give_up)
    if misfit is not None:
        inspected.misfit.CopyFrom(misfit)
    port.report(local_pb2.FromChild(inspected=inspected))


def _try_optimizer(make_optimizer: Callable[..., Any], where: Where) -> None:
    """Refuses arguments that it does not take. What else it says may be of this stand-in's making."""
    try:
        optimizer_maker(make_optimizer, where)([torch.nn.Parameter(torch.zeros(1, 1))])
    except PipesvcError as error:
        if isinstance(error.__cause__, TypeError | ValueError | None):
            raise
        _log.info("the optimizer was not tried: %s", error)


def layer_message(layer: LayerInfo) -> local_pb2.LayerInfo:
    return local_pb2.LayerInfo(
        name=layer.name,
        type=layer.type,
        mark=layer.mark,
        parameter_bytes=layer.parameter_bytes,
        buffer_bytes=layer.buffer_bytes,
        gradient_bytes=layer.gradient_bytes,
    )


def is_one_stage(job: job_pb2.JobSpec) -> bool:
    """One stage is built as plain torch would, so that a model that no skeleton can hold still trains unsplit."""
    return not job.strategy.is_pipelined or job.strategy.num_stages == 1
