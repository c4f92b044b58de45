"""Looks at a job before its run starts, on one worker, so that what cannot work is refused at submit.

The skeleton is built on the meta device: layers, marks and bytes are known without a byte of parameters. Every other
function of the job is imported too, for a missing package is the most frequent mistake; and a micro-batch of the
data is tried in the model where that costs little. Of a model that is no list, forward is followed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from pipesvc.core.plan import LayerInfo
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import recompute, skeleton
from pipesvc.model.sequence import NamedLayer
from pipesvc.rpc.v1 import job_pb2, local_pb2
from pipesvc.wire.weights_name import name_of
from pipesvc.worker import calls, data_trial
from pipesvc.worker.executor import loading
from pipesvc.worker.executor.units import recompute_of
from pipesvc.worker.forward_inspection import follow
from pipesvc.worker.inspection import Inspection
from pipesvc.worker.optimizer_state import state_per_gradient
from pipesvc.worker.optimizer_trial import Whole, refuse_unscalable, try_updates
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.progress import ProgressReporter
from pipesvc.worker.user_errors import user_error
from pipesvc.worker.weights_reader import WeightsReader

_log = logging.getLogger("pipesvc.inspector")


def run(port: PortLike, assignment: local_pb2.Assignment) -> None:
    """Report the layers, or units and flow, or raise what is wrong with the job."""
    where = calls.place_of(assignment)
    job = assignment.job
    torch.set_num_threads(1)
    progress = ProgressReporter(port)
    progress.busy("inspecting")
    build = calls.bind_model(job, where)
    calls.bind_loss(job, where)
    calls.bind_weight(job, where)
    optimizers, scheduler = calls.bind_optimizers(job, where), calls.bind_scheduler(job, where)
    if not job.data.is_streamed:
        calls.bind(job.data.source, "the data source", where)
    calls.bind_metrics(job, where)
    calls.bind_evaluation_source(job, where)
    parts = _parts(build, job, where)
    if not job.is_prediction:
        whole = Whole.of(parts)
        try_updates(optimizers, scheduler, whole, where)
        if job.HasField("grad_scaler"):
            refuse_unscalable(whole, where)
        del whole
    if job.HasField("weights"):
        progress.busy("comparing the weights with the model")
        own = "Give the state dict of this very model, or change the model function or its arguments"
        advice = "Go on with the very model of the checkpoint" if job.HasField("training") else own
        _refuse_other_weights(port, name_of(job.weights), parts, advice, where)
    layers = skeleton.layer_infos(parts)
    del parts
    found = Inspection(layers=layers, model_bytes=sum(each.parameter_bytes + each.buffer_bytes for each in layers))
    # Of several optimizers the one that keeps least, for it is not told here which takes what.
    found.state_per_gradient = min((state_per_gradient(each.make) for each in optimizers), default=0.0)

    def report(misfit: local_pb2.DataMisfit | None = None, *, is_trying: bool = False) -> None:
        message = _message(found, misfit)
        message.is_trying = is_trying
        port.report(local_pb2.FromChild(inspected=message))

    def end() -> None:
        report()
        sys.stdout.flush()
        os._exit(0)

    def give_up() -> None:
        _log.info("the first batch did not pass the model within %g s: the first step tells", data_trial.TRIAL_LIMIT_S)
        end()

    if found.is_module:
        follow(found, job, build, where, progress, end)
    report(is_trying=True)
    report(data_trial.find_misfit(found, job, where, progress, give_up))


def _parts(build: Callable[[], Any], job: job_pb2.JobSpec, where: Where) -> list[NamedLayer]:
    try:
        parts = skeleton.inspect_parts(build, is_whole=is_one_stage(job))
        if job.strategy.recompute_patterns:
            recompute.refuse_unmatched(skeleton.module_names(parts), recompute_of(job.strategy))
        return parts
    except PipesvcError as error:
        raise error.at(where) from error.__cause__
    except Exception as cause:
        raise user_error(ErrorCode.BUILD_FAILED, "building the model", cause, where=where) from cause


def _refuse_other_weights(port: PortLike, name: str, parts: Sequence[NamedLayer], advice: str, where: Where) -> None:
    """Names and shapes must be those of the model, all of them."""
    try:
        layout = WeightsReader(port, name).layout()
    except PipesvcError as error:
        fix = "Give a file that safetensors wrote, such as `run.save_weights` or `safetensors.torch.save_file`"
        raise PipesvcError(ErrorCode.INVALID_JOB, error.details.message, advice=fix, where=where) from error
    differing = loading.misfits(skeleton.state_shapes(parts), layout)
    if differing:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"{name} does not fit the model: {'; '.join(differing)}",
            advice=advice,
            where=where,
        )


def _message(found: Inspection, misfit: local_pb2.DataMisfit | None) -> local_pb2.Inspected:
    layers = map(layer_message, found.layers)
    message = local_pb2.Inspected(
        layers=layers, misfit=misfit, flow_json=found.flow_json, state_per_gradient=found.state_per_gradient
    )
    if found.reason is not None:
        from pipesvc.net import reports  # late: it imports gRPC, of which the nursery must stay free

        message.no_flow.CopyFrom(reports.to_message(found.reason))
    return message


def layer_message(layer: LayerInfo) -> local_pb2.LayerInfo:
    return local_pb2.LayerInfo(
        name=layer.name,
        type=layer.type,
        mark=layer.mark,
        parameter_bytes=layer.parameter_bytes,
        buffer_bytes=layer.buffer_bytes,
        gradient_bytes=layer.gradient_bytes,
        shared=[local_pb2.SharedParameter(**asdict(each)) for each in layer.shared],
    )


def is_one_stage(job: job_pb2.JobSpec) -> bool:
    """One stage is built as plain torch would, so that a model that no skeleton can hold still trains unsplit."""
    return not job.strategy.is_pipelined or job.strategy.num_stages == 1
