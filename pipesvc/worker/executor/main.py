"""Builds the stages that the plan gives to this worker, says that they are ready, and runs them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pipesvc.core.edges import edges_of
from pipesvc.core.plan import Plan
from pipesvc.core.schedules import splits_backward
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import malloc
from pipesvc.model.fingerprint import numeric_fingerprint
from pipesvc.rpc.v1 import job_pb2, local_pb2
from pipesvc.worker import calls
from pipesvc.worker.executor import loading, state
from pipesvc.worker.executor.parts import make_programs
from pipesvc.worker.executor.runtime import Runtime, Settings
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.executor.units import recompute_of
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.progress import ProgressReporter
from pipesvc.worker.user_errors import user_error
from pipesvc.worker.weights_reader import WeightsReader

_log = logging.getLogger("pipesvc.executor")


def run(port: PortLike, assignment: local_pb2.Assignment) -> None:
    """The life of an executor. Errors carry their place and are reported by `pipesvc.worker.child`."""
    where = calls.place_of(assignment)
    try:
        torch.set_num_threads(max(1, assignment.num_threads))
        ProgressReporter(port).busy("building")
        plan = Plan.from_json(assignment.plan_json)
        with malloc.while_building():
            stages = build_stages(assignment.job, plan, assignment.worker, where)
            if assignment.job.HasField("weights"):
                ProgressReporter(port).busy("loading the weights")
                loading.load(WeightsReader(port), stages.values())
        port.report(local_pb2.FromChild(ready=_ready(stages)))
        Runtime(port, stages, settings_of(assignment.job, plan, assignment.worker)).run()
    except PipesvcError as error:
        raise error.at(where) from error.__cause__


def settings_of(job: job_pb2.JobSpec, plan: Plan, worker: str) -> Settings:
    return Settings(
        worker=worker,
        edges=edges_of(plan, has_labels=calls.reads_labels(job), clips=job.clip_norm > 0),
        schedule=plan.schedule,
        in_flight=plan.in_flight,
        schedule_text=plan.schedule_text,
        clip_norm=job.clip_norm,
    )


def build_stages(job: job_pb2.JobSpec, plan: Plan, worker: str, where: Where) -> dict[int, Stage]:
    """Every stage of this worker, each real in its own part of the model only."""
    build = calls.bind(job.model, "the model", where)
    loss = calls.bind_loss(job, where)
    metrics = calls.bind_metrics(job, where)
    optimizer = calls.bind_optimizer(job, where)
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
        )
        for stage in plan.stages_of(worker)
    ]
    stages: dict[int, Stage] = {}
    for spec, program in zip(specs, make_programs(build, plan, specs, where), strict=True):
        stage = Stage(spec, program, optimizer_maker(optimizer, _at_stage(where, spec.index)))
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


def optimizer_maker(
    optimizer: Callable[..., Any], where: Where
) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Makes a stage's optimizer; what is wrong with it is told as the user's error."""

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        try:
            made = optimizer(parameters)
        except Exception as cause:
            raise user_error(ErrorCode.BUILD_FAILED, "making the optimizer", cause, where=where) from cause
        if not isinstance(made, torch.optim.Optimizer):
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"the optimizer is a {type(made).__name__}, not a torch.optim.Optimizer",
                where=where,
            )
        return made

    return make


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
