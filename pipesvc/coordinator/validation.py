"""Refuses a job that cannot run, before anything is stored or started.

The client checks the same and says it in the user's own words; this check is for every other client, and for what a
client of another version believes to be right.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Final

from pipesvc.coordinator.limits import BUNDLE_BYTES, JOB_BYTES, SAMPLE_BYTES
from pipesvc.core.schedules import FILE, SCHEDULE_NAMES, check_counts, splits_backward
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, types_pb2
from pipesvc.wire.link_codecs import codec_faults

# Run ids name directories.
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TARGET: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_WAIT_S: Final = 30 * 24 * 3600.0
_MAX_MICRO_BATCHES: Final = 65_536
_MAX_CAPACITY: Final = 65_536
_MAX_METRICS: Final = 100
_MAX_SCALE: Final = 3.4028234663852886e38


def check_submission(run_id: str, job: job_pb2.JobSpec, bundle: bytes) -> None:
    """Raises INVALID_JOB or BUNDLE_REFUSED with every fault that was found."""
    faults = list(_faults(run_id, job))
    if faults:
        raise PipesvcError(ErrorCode.INVALID_JOB, "; ".join(faults), where=Where(run_id=run_id[:64]))
    _check_bundle(run_id, job.bundle_sha256, bundle)


def _check_bundle(run_id: str, sha256: str, bundle: bytes) -> None:
    fault = ""
    if len(bundle) > BUNDLE_BYTES:
        fault = f"the bundle has {len(bundle)} bytes, at most {BUNDLE_BYTES} are allowed"
    elif bool(bundle) != bool(sha256):
        fault = "a bundle and its hash come together or not at all"
    elif bundle and hashlib.sha256(bundle).hexdigest() != sha256:
        fault = "the bundle's bytes do not have the hash that the job names"
    if fault:
        raise PipesvcError(ErrorCode.BUNDLE_REFUSED, fault, where=Where(run_id=run_id))


def _faults(run_id: str, job: job_pb2.JobSpec) -> Iterator[str]:
    if _RUN_ID.fullmatch(run_id) is None:
        yield "a run id has 1 to 64 letters, digits, dots, dashes and underscores, and begins with a letter or digit"
    sample_bytes = job.data.first.ByteSize()
    if job.ByteSize() - sample_bytes > JOB_BYTES:
        yield f"the job has {job.ByteSize() - sample_bytes} bytes, at most {JOB_BYTES} are allowed"
        return
    if sample_bytes > SAMPLE_BYTES:
        yield f"the first batch of the stream has {sample_bytes} bytes, at most {SAMPLE_BYTES} are allowed"
    if len(job.name) > 200:
        yield f"the job's name has {len(job.name)} characters, at most 200 are allowed"
    yield from _faults_of_calls(job)
    yield from _faults_of_data("data", job.data)
    if job.HasField("weight") and not job.data.has_labels:
        yield "a weight function needs labels, and the data has none"
    if job.HasField("evaluation"):
        yield from _faults_of_evaluation(job)
    yield from _faults_of_strategy(job)
    yield from _faults_of_run(job)


def _faults_of_calls(job: job_pb2.JobSpec) -> Iterator[str]:
    yield from _faults_of_model(job)
    if job.is_prediction and job.HasField("evaluation"):
        yield "a prediction is not evaluated"
    for name, source in (("weights", job.weights), ("training", job.training)):
        if job.HasField(name):
            yield from _faults_of_weights(source)
    if job.HasField("training") and (job.is_prediction or not job.HasField("weights")):
        yield "a training state belongs to weights of a job that trains"
    calls = {"model": job.model, "loss": job.loss, "optimizer": job.optimizer, "weight": job.weight}
    for field, call in calls.items():
        if job.HasField(field):
            yield from _faults_of_call(field, call)
    yield from _faults_of_optimizers(job)
    if job.HasField("scheduler"):
        yield from _faults_of_call("scheduler", job.scheduler.make)
        if job.scheduler.every not in (job_pb2.SCHEDULER_PERIOD_STEP, job_pb2.SCHEDULER_PERIOD_EPOCH):
            yield f"when the scheduler is stepped is the unknown number {job.scheduler.every}"


def _faults_of_optimizers(job: job_pb2.JobSpec) -> Iterator[str]:
    if not job.is_prediction and not job.HasField("optimizer") and not job.optimizers:
        yield "the job has no optimizer"
    elif job.HasField("optimizer") and job.optimizers:
        yield "the job has one optimizer for all parameters, and a list of them: one of the two"
    for each in job.optimizers:
        yield from _faults_of_call("optimizer", each.make)
        if each.HasField("group_rule"):
            yield from _faults_of_call("the group rule of the optimizer", each.group_rule)
            if each.groups:
                yield "the parameter groups are given by patterns and by a function: one of the two"
        for group in each.groups:
            if not _is_object(group.options_json):
                yield f"the options of the group {group.pattern!r} are not a JSON object"


def _faults_of_model(job: job_pb2.JobSpec) -> Iterator[str]:
    num_builders, strategy = len(job.stage_models), job.strategy
    if not num_builders and not job.HasField("model"):
        yield "the job has no model"
    elif num_builders and job.HasField("model"):
        yield "the job has a model and builders of stages: one of the two"
    if num_builders and job.optimizers:
        yield "the job has builders of stages, which know no names of each other, and optimizers by name"
    for index, call in enumerate(job.stage_models):
        yield from _faults_of_call(f"the model of stage {index}", call)
    if num_builders and strategy.boundaries and list(strategy.boundaries) != list(range(1, num_builders)):
        yield f"the job has {num_builders} builders of stages, and its boundaries are {list(strategy.boundaries)}"


def _faults_of_weights(source: job_pb2.WeightsSource) -> Iterator[str]:
    if bool(source.run_id) == bool(source.sha256):
        yield "the weights are those of a run or of a file that was sent: one of the two"
    elif source.run_id and _RUN_ID.fullmatch(source.run_id) is None:
        yield f"{source.run_id[:64]!r} is no run id"
    elif source.sha256 and _SHA256.fullmatch(source.sha256) is None:
        yield "the hash of the weights is not a SHA-256 in 64 lower-case hex digits"


def _faults_of_call(field: str, call: types_pb2.Call) -> Iterator[str]:
    if _TARGET.fullmatch(call.target) is None:
        yield f'{field} is {call.target!r}, which is not "package.module:name"'
    if call.arguments_json and not _is_object(call.arguments_json):
        yield f"the arguments of {field} are not a JSON object"
    for name, target in call.functions.items():
        if _TARGET.fullmatch(target) is None:
            yield f'the argument {name} of {field} is {target!r}, which is not "package.module:name"'


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _faults_of_evaluation(job: job_pb2.JobSpec) -> Iterator[str]:
    evaluation = job.evaluation
    yield from _faults_of_data("evaluation data", evaluation.data)
    if evaluation.data.is_streamed:
        yield "the evaluation data is streamed, and has to be read again at each evaluation"
    if evaluation.data.has_labels != job.data.has_labels:
        yield "one of data and evaluation data has labels, the other one has none"
    if not 1 <= evaluation.micro_batches <= _MAX_MICRO_BATCHES:
        yield f"micro_batches of the evaluation is {evaluation.micro_batches}: 1 to {_MAX_MICRO_BATCHES} are possible"
    names = [metric.name for metric in evaluation.metrics]
    if (
        len(set(names)) < len(names)
        or len(names) > _MAX_METRICS
        or not all(name and name.isprintable() for name in names)
    ):
        yield f"the evaluation has {_MAX_METRICS} metrics at most, each with a printable name of its own"
    for metric in evaluation.metrics:
        yield from _faults_of_call(f"metric {metric.name!r}", metric.call)


def _faults_of_data(what: str, data: job_pb2.DataSpec) -> Iterator[str]:
    if data.is_streamed == data.HasField("source"):
        yield f"the {what} has a source or is streamed by the client: one of the two"
    if data.HasField("first") and not data.is_streamed:
        yield f"the {what} has a first batch and is not streamed"
    if data.HasField("source"):
        yield from _faults_of_call(f"the {what} source", data.source)
    if data.yields not in (job_pb2.YIELDS_SAMPLE, job_pb2.YIELDS_SAMPLE_LIST, job_pb2.YIELDS_BATCH):
        yield f"what the {what} source yields is the unknown number {data.yields}"
    elif data.yields != job_pb2.YIELDS_BATCH and not data.batch_size:
        yield "batch_size is 0 and the source does not yield whole batches"
    if not 1 <= data.capacity <= _MAX_CAPACITY:
        yield f"capacity is {data.capacity}: it counts batches, 1 to {_MAX_CAPACITY}"
    yield from _faults_of_waits({f"the {what} source's timeout": data.timeout_s})


def _faults_of_strategy(job: job_pb2.JobSpec) -> Iterator[str]:
    strategy, batch_size = job.strategy, job.data.batch_size
    if not 1 <= strategy.micro_batches <= _MAX_MICRO_BATCHES:
        yield f"micro_batches is {strategy.micro_batches}: 1 to {_MAX_MICRO_BATCHES} are possible"
    elif 0 < batch_size < strategy.micro_batches:
        yield (
            f"a batch of {batch_size} rows cannot be cut into {strategy.micro_batches} micro-batches: "
            f"use at most {batch_size} micro-batches or a larger batch"
        )
    if strategy.micro_batches * job.accumulate > _MAX_MICRO_BATCHES:
        yield f"a step has {strategy.micro_batches} x {job.accumulate} micro-batches: 1 to {_MAX_MICRO_BATCHES} can be"
    if strategy.schedule == FILE and job.accumulate > 1:
        yield "a schedule file orders the micro-batches of one mini-batch, and accumulate joins several"
    if strategy.schedule == FILE:
        yield from _faults_of_schedule_text(strategy)
    elif strategy.schedule_text:
        yield f"the schedule is {strategy.schedule!r} and has the text of a file: one of the two"
    elif strategy.schedule.lower() not in {name.lower() for name in SCHEDULE_NAMES}:
        yield f"the schedule is {strategy.schedule!r}: choose one of {', '.join(SCHEDULE_NAMES)}"
    yield from _faults_of_modules(strategy)
    yield from codec_faults(strategy)
    if list(strategy.boundaries) != sorted(set(strategy.boundaries)) or 0 in strategy.boundaries:
        yield f"boundaries {list(strategy.boundaries)} do not ascend from 1"
    if strategy.boundaries and strategy.boundary_names:
        yield "boundaries are given by index and by name: one of the two"


def _faults_of_modules(strategy: job_pb2.StrategySpec) -> Iterator[str]:
    """How layers and units are run."""
    if strategy.recomputes_all and strategy.recompute_patterns:
        yield "recompute is asked for all modules and by patterns: one of the two"
    if strategy.compiles and strategy.recompute_patterns:
        yield "compile and patterns of recompute exclude each other"
    try:
        is_split = strategy.compiles and splits_backward(strategy.schedule, strategy.schedule_text)
    except PipesvcError:
        return  # of the schedule, which is told for itself
    if is_split:
        yield f"the schedule {strategy.schedule} splits backwards into I and W, and compile makes them whole"


def _faults_of_schedule_text(strategy: job_pb2.StrategySpec) -> Iterator[str]:
    try:
        check_counts(
            FILE,
            num_micro_batches=strategy.micro_batches,
            in_flight=strategy.in_flight,
            text=strategy.schedule_text,
        )
    except PipesvcError as error:
        yield f"{error.details.message}: {error.details.advice}"


def _faults_of_run(job: job_pb2.JobSpec) -> Iterator[str]:
    if not job.epochs and not job.max_steps:
        yield "epochs and max_steps are both 0: the run would have no end"
    for name in ("clip_norm", "clip_value"):
        if not (math.isfinite(getattr(job, name)) and getattr(job, name) >= 0):
            yield f"{name} is {getattr(job, name)}: it is 0 (no clipping) or a positive number"
    if job.autocast not in (
        job_pb2.AUTOCAST_UNSPECIFIED,
        job_pb2.AUTOCAST_BFLOAT16,
        job_pb2.AUTOCAST_FLOAT16,
    ):
        yield f"autocast is the unknown number {job.autocast}"
    if job.HasField("grad_scaler"):
        yield from _faults_of_scaler(job.grad_scaler)
    if job.clip_norm and job.clip_value:
        yield "clip_norm and clip_value are both given: one of the two"
    waits = ("worker_wait_s", "build_timeout_s", "step_timeout_s")
    yield from _faults_of_waits({name: getattr(job, name) for name in waits})
    if job.bundle_sha256 and _SHA256.fullmatch(job.bundle_sha256) is None:
        yield "bundle_sha256 is not a SHA-256 in 64 lower-case hex digits"


def _faults_of_scaler(scaler: job_pb2.GradScalerSpec) -> Iterator[str]:
    if not 0 < scaler.init_scale <= _MAX_SCALE:
        yield f"init_scale of the scaler is {scaler.init_scale}: a positive float32 number"
    if not 1 < scaler.growth_factor < math.inf or not 0 < scaler.backoff_factor < 1:
        yield (
            f"the scaler grows by {scaler.growth_factor} and backs off by {scaler.backoff_factor}: "
            "more than 1, and less than 1 but positive"
        )
    if not scaler.growth_interval:
        yield "growth_interval of the scaler is 0: it grows after 1 or more steps"


def _faults_of_waits(waits: dict[str, float]) -> Iterator[str]:
    for name, value in waits.items():
        if not 0 < value <= _MAX_WAIT_S:
            yield f"{name} is {value:g}: seconds, above 0 and at most {_MAX_WAIT_S:g}"
