"""The functions of a job, ready to call: every child binds them here before it builds, so that a missing package or a
misspelt name is found before anything costs time, and is told with the function's part in the job and the worker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.keyed import KeyedBuild
from pipesvc.model.stage_builds import StageBuilds
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.worker.executor.optimizing import SchedulerChoice
from pipesvc.worker.executor.parameter_groups import OptimizerChoice
from pipesvc.worker.user_errors import user_error


def bind(call: types_pb2.Call, role: str, where: Where) -> Callable[..., Any]:
    """The function that `call` names, with its keyword arguments. `role` is its part in the job ("the model")."""
    arguments = _object(call.arguments_json, f"the arguments of {role}", where)
    for name, target in call.functions.items():
        arguments[name] = _imported(target, f"the argument {name} of {role}", where)
    return partial(_imported(call.target, role, where), **arguments)


def bind_model(job: job_pb2.JobSpec, where: Where) -> Callable[[], Any]:
    """What builds the model: one function, or one for each stage."""

    def bound(call: types_pb2.Call, role: str) -> Callable[[], Any]:
        build = bind(call, role, where)
        return KeyedBuild(build) if job.keys_init_by_name else build

    if job.stage_models:
        return StageBuilds([bound(call, f"the model of stage {index}") for index, call in enumerate(job.stage_models)])
    return bound(job.model, "the model")


def bind_optional(is_given: bool, call: types_pb2.Call, role: str, where: Where) -> Callable[..., Any] | None:
    return bind(call, role, where) if is_given else None


def bind_loss(job: job_pb2.JobSpec, where: Where) -> Callable[..., Any] | None:
    """None: the model's last layer returns the loss. Then nobody would read labels."""
    if job.is_prediction:
        return None
    if not job.HasField("loss") and job.data.has_labels:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            "the data has labels, but the job has no loss function that reads them",
            advice="Give loss=, or labels=False, so that the first layer gets each item whole",
            where=where,
        )
    return bind_optional(job.HasField("loss"), job.loss, "the loss function", where)


def reads_labels(job: job_pb2.JobSpec) -> bool:
    """Of a prediction nobody reads the labels, if there are some."""
    return job.data.has_labels and not job.is_prediction


def bind_weight(job: job_pb2.JobSpec, where: Where) -> Callable[..., Any] | None:
    """None: every row weighs the same."""
    return bind_optional(job.HasField("weight"), job.weight, "the weight function", where)


def bind_metrics(job: job_pb2.JobSpec, where: Where) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Name and function of each."""
    return tuple((each.name, bind(each.call, f"the metric {each.name!r}", where)) for each in job.evaluation.metrics)


def bind_evaluation_source(job: job_pb2.JobSpec, where: Where) -> Callable[..., Any] | None:
    """None: the run is not evaluated."""
    return bind_optional(job.HasField("evaluation"), job.evaluation.data.source, "the evaluation data source", where)


def bind_optimizers(job: job_pb2.JobSpec, where: Where) -> list[OptimizerChoice]:
    """What the job says of its optimizer, or of each; none in a prediction, which updates nothing."""
    if job.is_prediction:
        return []
    return [_choice(each, where) for each in job.optimizers or [job_pb2.OptimizerSpec(make=job.optimizer)]]


def _choice(said: job_pb2.OptimizerSpec, where: Where) -> OptimizerChoice:
    return OptimizerChoice(
        pattern=said.pattern or "*",
        make=bind(said.make, "the optimizer", where),
        groups={
            group.pattern: _object(group.options_json, f"the options of the group {group.pattern!r}", where)
            for group in said.groups
        },
        rule=bind_optional(said.HasField("group_rule"), said.group_rule, "the rule of groups", where),
    )


def bind_scheduler(job: job_pb2.JobSpec, where: Where) -> SchedulerChoice | None:
    """None: rates stay as they are."""
    if not job.HasField("scheduler"):
        return None
    return SchedulerChoice(
        make=bind(job.scheduler.make, "the scheduler", where),
        is_by_epoch=job.scheduler.every == job_pb2.SCHEDULER_PERIOD_EPOCH,
    )


def place_of(assignment: local_pb2.Assignment) -> Where:
    return Where(run_id=assignment.run_id, worker=assignment.worker, host=assignment.host)


def _called_exit(module: str, role: str, cause: SystemExit, where: Where) -> PipesvcError:
    """A script that is run as such ends here, as when it reads the command line, which is not its own."""
    spec = find_spec(module) if module in sys.modules or "." not in module else None
    name = Path(spec.origin).name if spec is not None and spec.origin else module
    return user_error(
        ErrorCode.IMPORT_FAILED,
        f"importing {name} for {role} called sys.exit({'' if cause.code is None else repr(cause.code)})",
        cause,
        advice="What the file does as a script (reading the command line, starting the run) belongs "
        'under `if __name__ == "__main__":`',
        where=where,
    )


def _object(text: str, what: str, where: Where) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as cause:
        raise PipesvcError(ErrorCode.INVALID_JOB, f"{what} are not valid JSON: {cause}", where=where) from cause
    if not isinstance(found, dict):
        message = f"{what} are a {type(found).__name__}, not an object of keyword arguments"
        raise PipesvcError(ErrorCode.INVALID_JOB, message, where=where)
    return found


def _imported(text: str, role: str, where: Where) -> Callable[..., Any]:
    module, separator, name = text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not separator or not all(part.isidentifier() for part in parts):
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"{role} is named {text!r}, which is not of the form 'package.module:name'",
            advice="Give a function or class at the top level of an importable module",
            where=where,
        )
    try:
        target: Any = import_module(module)
    except SystemExit as cause:
        raise _called_exit(module, role, cause, where) from cause
    except Exception as cause:
        raise user_error(
            ErrorCode.IMPORT_FAILED,
            f"worker {where.worker!r} cannot import {module!r} for {role}",
            cause,
            advice="Install what is missing on the worker, or name the missing file in include=",
            where=where,
        ) from cause
    for part in name.split("."):
        if not hasattr(target, part):
            raise PipesvcError(
                ErrorCode.IMPORT_FAILED,
                f"{module!r} on worker {where.worker!r} has no {name!r}, which is named as {role}",
                advice="Check that the worker has the same version of the module as the client",
                where=where,
            )
        target = getattr(target, part)
    if not callable(target):
        message = f"{role} {text!r} is a {type(target).__name__}, which cannot be called"
        raise PipesvcError(ErrorCode.INVALID_JOB, message, advice="Give a function or a class", where=where)
    found: Callable[..., Any] = target
    return found
