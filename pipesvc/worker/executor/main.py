"""Builds the stages that the plan gives to this worker, says that they are ready, and runs them."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import torch

from pipesvc.core.plan import Plan
from pipesvc.core.schedules import splits_backward
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import malloc
from pipesvc.model.fingerprint import numeric_fingerprint
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.wire.job_edges import edges_of_job
from pipesvc.wire.link_codecs import LinkCodecs
from pipesvc.wire.weights_name import name_of
from pipesvc.worker import calls
from pipesvc.worker.executor import loading, state
from pipesvc.worker.executor.optimizing import make_updates
from pipesvc.worker.executor.parameter_groups import allot
from pipesvc.worker.executor.parts import make_parts
from pipesvc.worker.executor.precision import autocast_dtype
from pipesvc.worker.executor.runtime import Runtime, Settings
from pipesvc.worker.executor.scaling import LossScale, ScalerSettings, first_scale
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.executor.training_state import Checkpoint
from pipesvc.worker.executor.units import recompute_of
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.progress import ProgressReporter
from pipesvc.worker.weights_reader import WeightsReader

_log = logging.getLogger("pipesvc.executor")


def run(port: PortLike, assignment: local_pb2.Assignment) -> None:
    """The life of an executor. Errors carry their place and are reported by `pipesvc.worker.child`."""
    where = calls.place_of(assignment)
    try:
        torch.set_num_threads(max(1, assignment.num_threads))
        ProgressReporter(port).busy("building")
        plan = Plan.from_json(assignment.plan_json)
        job = assignment.job
        with malloc.while_building():
            checkpoint = _checkpoint_of(port, job)
            scale = checkpoint.scale if checkpoint is not None else None
            stages = build_stages(job, plan, assignment.worker, where, scale)
            if job.HasField("weights"):
                ProgressReporter(port).busy("loading the weights")
                loading.load(WeightsReader(port, name_of(job.weights)), stages.values())
            if checkpoint is not None:
                ProgressReporter(port).busy("loading the training state")
                for stage in stages.values():
                    checkpoint.restore(stage, _at_stage(where, stage.spec.index))
        port.report(local_pb2.FromChild(ready=_ready(stages)))
        settings = settings_of(job, plan, assignment.worker)
        start = types_pb2.Position(batch_size=job.data.batch_size, accumulate=job.accumulate)
        start.MergeFrom(assignment.start)
        start.run_id = assignment.run_id
        Runtime(port, stages, replace(settings, scale=scale, start=start)).run()
    except PipesvcError as error:
        raise error.at(where) from error.__cause__


def _checkpoint_of(port: PortLike, job: job_pb2.JobSpec) -> Checkpoint | None:
    if not job.HasField("training"):
        return None
    return Checkpoint(WeightsReader(port, name_of(job.training), is_training=True))


def settings_of(job: job_pb2.JobSpec, plan: Plan, worker: str) -> Settings:
    return Settings(
        worker=worker,
        edges=edges_of_job(plan, job),
        schedule=plan.schedule,
        in_flight=plan.in_flight,
        schedule_text=plan.schedule_text,
        clip_norm=job.clip_norm,
        scaler=scaler_of(job),
        codecs=LinkCodecs.of_strategy(job.strategy),
    )


def scaler_of(job: job_pb2.JobSpec) -> ScalerSettings | None:
    """None: losses are not scaled."""
    if not job.HasField("grad_scaler"):
        return None
    return ScalerSettings(
        init_scale=job.grad_scaler.init_scale,
        growth_factor=job.grad_scaler.growth_factor,
        backoff_factor=job.grad_scaler.backoff_factor,
        growth_interval=job.grad_scaler.growth_interval,
    )


def build_stages(
    job: job_pb2.JobSpec, plan: Plan, worker: str, where: Where, scale: LossScale | None = None
) -> dict[int, Stage]:
    """Every stage of this worker, each real in its own part of the model only. `scale` None: the scaler's first."""
    build = calls.bind_model(job, where)
    loss = calls.bind_loss(job, where)
    metrics = calls.bind_metrics(job, where)
    scaler = scaler_of(job)
    if scaler is None:
        scale = None
    elif scale is None:
        scale = first_scale(scaler)
    optimizers, scheduler = calls.bind_optimizers(job, where), calls.bind_scheduler(job, where)
    specs = [
        StageSpec(
            index=stage.index,
            num_stages=plan.num_stages,
            first_layer=stage.first_layer,
            device=device_of(stage.device, _at_stage(where, stage.index)),
            seed=job.seed,
            loss=loss,
            check_finite=job.check_finite,
            splits_backward=splits_backward(plan.schedule, plan.schedule_text),
            recompute=recompute_of(job.strategy),
            compiles=job.strategy.compiles,
            metrics=metrics,
            clip_value=job.clip_value,
            clips_norm=job.clip_norm > 0,
            autocast=autocast_dtype(job.autocast),
            scale=None if scale is None else scale.value,
            defers_batch_norm=job.defers_batch_norm,
        )
        for stage in plan.stages_of(worker)
    ]
    parts = make_parts(build, plan, specs, where)
    allotments = allot(optimizers, parts.parameters, where)
    stages: dict[int, Stage] = {}
    for spec, program in zip(specs, parts.programs, strict=True):
        at_stage = _at_stage(where, spec.index)
        stage = Stage(spec, program, partial(make_updates, allotments, scheduler, where=at_stage))
        state.check(stage)
        stages[spec.index] = stage
        _log.info("stage %d: %s on %s", spec.index, ", ".join(plan.stages[spec.index].layer_names), spec.device)
    return stages


def device_of(name: str, where: Where) -> torch.device:
    """The device of that name, if torch sees it here."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PipesvcError(
            ErrorCode.UNKNOWN_DEVICE,
            f"{name} is asked for, but torch sees no GPU on worker {where.worker!r}",
            advice="Check the driver and that torch is a CUDA build (python -c 'import torch; torch.cuda.init()')",
            where=where,
        )
    return device


def _at_stage(where: Where, stage: int) -> Where:
    return Where(run_id=where.run_id, stage=stage, worker=where.worker, host=where.host)


def _ready(stages: dict[int, Stage]) -> local_pb2.Ready:
    parameters = [
        local_pb2.ParameterInfo(name=name, num_bytes=parameter.numel() * parameter.element_size())
        for stage in stages.values()
        for name, parameter in stage.named_parameters().items()
    ]
    fingerprint = numeric_fingerprint({stage.spec.device.type for stage in stages.values()})
    return local_pb2.Ready(parameters=parameters, fingerprint=fingerprint)
