"""The optimizer of a job as the wire says it: the one place that knows both the user's words and the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipesvc.client.calls import Call, Optimizer
from pipesvc.client.job import Job
from pipesvc.rpc.v1 import job_pb2, types_pb2


def optimizer_calls(job: Job) -> dict[str, Call]:
    """Its functions, under names that `write_optimizers` knows."""
    calls: dict[str, Call] = {}
    for pattern, optimizer in _by_pattern(job).items():
        calls[_make(pattern)] = optimizer
        if isinstance(optimizer.groups, Call):
            calls[_rule(pattern)] = optimizer.groups
    return calls


def write_optimizers(spec: job_pb2.JobSpec, job: Job, messages: Mapping[str, types_pb2.Call]) -> None:
    """`messages` are those of `optimizer_calls`."""
    if isinstance(job.optimizer, Optimizer) and not job.optimizer.groups:
        spec.optimizer.CopyFrom(messages[_make("")])
        return
    spec.optimizers.extend(
        job_pb2.OptimizerSpec(
            make=messages[_make(pattern)],
            groups=_groups(optimizer),
            group_rule=messages.get(_rule(pattern)),
            pattern=pattern,
        )
        for pattern, optimizer in _by_pattern(job).items()
    )


def _by_pattern(job: Job) -> Mapping[str, Optimizer]:
    """ "" for all parameters, as the wire says it."""
    return {"": job.optimizer} if isinstance(job.optimizer, Optimizer) else job.optimizer


def _make(pattern: str) -> str:
    return f"optimizer {pattern}"


def _rule(pattern: str) -> str:
    return f"groups of optimizer {pattern}"


def _groups(optimizer: Optimizer) -> list[job_pb2.ParameterGroup]:
    if not isinstance(optimizer.groups, Mapping):
        return []
    return [
        job_pb2.ParameterGroup(pattern=pattern, options_json=json.dumps(options, sort_keys=True, allow_nan=False))
        for pattern, options in optimizer.groups.items()
    ]
