"""The optimizer of a job as the wire says it: the one place that knows both the user's words and the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipesvc.client.calls import Call, Optimizer
from pipesvc.client.job import Job
from pipesvc.rpc.v1 import job_pb2, types_pb2

_MAKE = "optimizer"
_RULE = "the groups of the optimizer"


def optimizer_calls(job: Job) -> dict[str, Call]:
    """Its functions, under names that `write_optimizers` knows."""
    groups = job.optimizer.groups
    return {_MAKE: job.optimizer} | ({_RULE: groups} if isinstance(groups, Call) else {})


def write_optimizers(spec: job_pb2.JobSpec, job: Job, messages: Mapping[str, types_pb2.Call]) -> None:
    """`messages` are those of `optimizer_calls`."""
    if not job.optimizer.groups:
        spec.optimizer.CopyFrom(messages[_MAKE])
        return
    spec.optimizers.append(
        job_pb2.OptimizerSpec(make=messages[_MAKE], groups=_groups(job.optimizer), group_rule=messages.get(_RULE))
    )


def _groups(optimizer: Optimizer) -> list[job_pb2.ParameterGroup]:
    if not isinstance(optimizer.groups, Mapping):
        return []
    return [
        job_pb2.ParameterGroup(pattern=pattern, options_json=json.dumps(options, sort_keys=True, allow_nan=False))
        for pattern, options in optimizer.groups.items()
    ]
