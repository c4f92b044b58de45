"""A job as the message that the coordinator takes, with the sources that it needs.

The only place of the client that knows both the user's words (pipesvc.client.job) and the wire's (JobSpec); a
field that is added to one and forgotten in the other is found by the test that walks both.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from pipesvc.client import checks, weights_source
from pipesvc.client.bundle import Bundle, make_bundle
from pipesvc.client.calls import Call, as_call
from pipesvc.client.codec import Codec
from pipesvc.client.evaluation import Evaluation
from pipesvc.client.job import DataSource, GradScaler, Job, Strategy, StreamSource
from pipesvc.client.notebook import Notebook, make_notebook
from pipesvc.client.optimizer_spec import optimizer_calls, write_optimizers
from pipesvc.client.references import Reference, resolve
from pipesvc.client.schedule_file import ScheduleFile
from pipesvc.core.schedules import FILE
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2, types_pb2

_YIELDS = {
    "sample": job_pb2.YIELDS_SAMPLE,
    "sample_list": job_pb2.YIELDS_SAMPLE_LIST,
    "batch": job_pb2.YIELDS_BATCH,
}
# How calls are named here that are no field of the job.
_EVALUATION_SOURCE: Final = "evaluation source"
_METRIC: Final = "metric "
_AUTOCASTS = {
    None: job_pb2.AUTOCAST_UNSPECIFIED,
    "bfloat16": job_pb2.AUTOCAST_BFLOAT16,
    "float16": job_pb2.AUTOCAST_FLOAT16,
}
_PERIODS = {"step": job_pb2.SCHEDULER_PERIOD_STEP, "epoch": job_pb2.SCHEDULER_PERIOD_EPOCH}
_STAGE: Final = "model of stage "
_CODECS = {
    "none": types_pb2.CODEC_NONE,
    "bf16": types_pb2.CODEC_BF16,
    "fp16": types_pb2.CODEC_FP16,
    "int8": types_pb2.CODEC_INT8,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """What SubmitRun needs beside the run id."""

    spec: job_pb2.JobSpec
    bundle: Bundle


def make_submission(job: Job, *, is_prediction: bool = False) -> Submission:
    """Resolve every function of the job, bundle the sources, and write the message.

    A prediction needs nothing of what a training needs beside the model.
    """
    calls = _calls_of(job, is_prediction=is_prediction)
    references = {what: resolve(call.function) for what, call in calls.items()}
    arguments = {what: {name: resolve(each) for name, each in call.functions.items()} for what, call in calls.items()}
    resolved = [*references.values(), *(each for given in arguments.values() for each in given.values())]
    notebook = _notebook_of(resolved)
    first, *others = (references[what] for what in _model_calls(job))
    bundle = _bundle_of(job, first, resolved, notebook)
    weights, training = weights_source.sources_of(job)
    spec = job_pb2.JobSpec(
        name=job.name or first.qualname,
        stage_models=[types_pb2.Call() for _ in (first, *others) if others],
        data=_data_spec(job.data),
        evaluation=_evaluation_spec(job.evaluation, job.strategy) if job.evaluation is not None else None,
        strategy=_strategy_spec(job.strategy),
        is_prediction=is_prediction,
        weights=weights_source.message(weights),
        training=weights_source.message(training),
        keys_init_by_name=job.init == weights_source.BY_NAME,
        epochs=job.num_epochs,
        max_steps=job.max_steps or 0,
        seed=job.seed,
        clip_norm=job.clip_norm or 0.0,
        clip_value=job.clip_value or 0.0,
        accumulate=job.accumulate,
        autocast=_AUTOCASTS[job.autocast],
        grad_scaler=_scaler_spec(job.scaler),
        check_finite=job.check_finite,
        defers_batch_norm=job.batch_norm == "deferred",
        worker_wait_s=job.worker_wait_s,
        build_timeout_s=job.build_timeout_s,
        step_timeout_s=job.step_timeout_s,
        python_version=platform.python_version(),
        torch_version=_version_of("torch"),
        bundle_sha256=bundle.sha256,
    )
    notebook_name = notebook.name if notebook else ""
    messages = {
        what: types_pb2.Call(
            target=references[what].target(notebook_name),
            arguments_json=call.arguments_json,
            functions={name: each.target(notebook_name) for name, each in arguments[what].items()},
        )
        for what, call in calls.items()
    }
    for what in messages.keys() - optimizer_calls(job).keys():
        _place_of(spec, what).CopyFrom(messages[what])
    if not is_prediction:
        write_optimizers(spec, job, messages)
        if job.scheduler is not None:
            spec.scheduler.every = _PERIODS[job.scheduler.every]
    return Submission(spec=spec, bundle=bundle)


def _calls_of(job: Job, *, is_prediction: bool) -> dict[str, Call]:
    """Every function of the job, by its part in it."""
    calls = _model_calls(job)
    if not is_prediction:
        calls |= optimizer_calls(job)
        for what in ("loss", "weight"):
            value = getattr(job, what)
            if value is not None:
                calls[what] = as_call(value, what=what)
        if job.scheduler is not None:
            calls["scheduler"] = job.scheduler
    if not isinstance(job.data, StreamSource):
        calls["source"] = as_call(job.data.source, what="source")
    if job.evaluation is not None:
        calls |= _evaluation_calls(job.evaluation)
    return calls


def _model_calls(job: Job) -> dict[str, Call]:
    """Of one builder, or one for each stage."""
    builders = job.builders
    names = ["model"] if len(builders) == 1 else [f"{_STAGE}{index}" for index in range(len(builders))]
    return dict(zip(names, builders, strict=True))


def measurable(job: Job, micro_batches: int | None = None) -> Job:
    """The job as its costs are measured, whatever its plan and though that may be open: costs depend on the
    micro-batches, which are the job's or as many as are given, and on the way of links."""
    check_is_job(job)
    asked = job.strategy
    strategy = Strategy(
        micro_batches=micro_batches or asked.micro_batches,
        allow_cpu_for_gpu=asked.allow_cpu_for_gpu,
        same_host=asked.same_host,
    )
    return replace(job, strategy=strategy, init=None if weights_source.is_given(job.init) else job.init, resume=None)


def check_is_job(job: object) -> None:
    checks.is_a("the job", job, Job, "a pipesvc.Job")


def _place_of(spec: job_pb2.JobSpec, what: str) -> types_pb2.Call:
    """Where in the message the call with this name belongs."""
    if what == "source":
        return spec.data.source
    if what == "scheduler":
        return spec.scheduler.make
    if what == _EVALUATION_SOURCE:
        return spec.evaluation.data.source
    if what.startswith(_METRIC):
        return next(each.call for each in spec.evaluation.metrics if each.name == what.removeprefix(_METRIC))
    if what.startswith(_STAGE):
        return spec.stage_models[int(what.removeprefix(_STAGE))]
    place: types_pb2.Call = getattr(spec, what)
    return place


def _evaluation_calls(evaluation: Evaluation) -> dict[str, Call]:
    calls = {_EVALUATION_SOURCE: as_call(evaluation.data.source, what="source")}
    for name, function in evaluation.metrics.items():
        calls[_METRIC + name] = as_call(function, what=f"metrics[{name!r}]")
    return calls


def _evaluation_spec(evaluation: Evaluation, strategy: Strategy) -> job_pb2.EvaluationSpec:
    return job_pb2.EvaluationSpec(
        data=_data_spec(evaluation.data),
        every_steps=evaluation.every_steps or 0,
        micro_batches=evaluation.micro_batches or strategy.micro_batches,
        metrics=[job_pb2.MetricSpec(name=name) for name in evaluation.metrics],
    )


def _data_spec(data: DataSource | StreamSource) -> job_pb2.DataSpec:
    return job_pb2.DataSpec(
        is_streamed=isinstance(data, StreamSource),
        yields=_YIELDS[data.yields],
        batch_size=data.batch_size or 0,
        capacity=data.capacity,
        double_buffer=data.double_buffer,
        drop_last=data.drop_last,
        has_labels=data.labels,
        timeout_s=data.timeout_s,
    )


def _scaler_spec(scaler: GradScaler | None) -> job_pb2.GradScalerSpec | None:
    return job_pb2.GradScalerSpec(**asdict(scaler)) if scaler is not None else None


def _strategy_spec(strategy: Strategy) -> job_pb2.StrategySpec:
    if strategy.is_open:
        raise PipesvcError(ErrorCode.INTERNAL, "a strategy with open parts was submitted without a plan")
    return job_pb2.StrategySpec(
        is_pipelined=strategy.pipeline,
        micro_batches=strategy.micro_batches,
        schedule=FILE if isinstance(strategy.schedule, ScheduleFile) else strategy.schedule,
        schedule_text=strategy.schedule.text if isinstance(strategy.schedule, ScheduleFile) else "",
        num_stages=strategy.num_stages or 0,
        boundaries=[each for each in strategy.boundaries if isinstance(each, int)],
        boundary_names=[each for each in strategy.boundaries if isinstance(each, str)],
        placement=dict(strategy.placement),
        allow_cpu_for_gpu=strategy.allow_cpu_for_gpu,
        in_flight=strategy.in_flight or 0,
        recomputes_all=strategy.recompute is True,
        recompute_patterns=() if isinstance(strategy.recompute, bool) else strategy.recompute,
        compiles=strategy.compile,
        forces_grpc=not strategy.same_host,
        codecs=[] if strategy.codec.is_none else _codec_messages(strategy.codec),
    )


def _codec_messages(codec: Codec) -> list[job_pb2.LinkCodec]:
    return [
        job_pb2.LinkCodec(
            earlier_stage=earlier,
            later_stage=later,
            activations=_CODECS[each.activations],
            gradients=_CODECS[each.gradients],
        )
        for (earlier, later), each in codec.by_pair.items()
    ]


def _notebook_of(references: Sequence[Reference]) -> Notebook | None:
    ours = [reference for reference in references if reference.notebook is not None]
    if not ours:
        return None
    namespace: dict[str, Any] = ours[0].notebook or {}
    cells = [str(cell) for cell in namespace["In"]]
    return make_notebook(cells, sorted({r.qualname.split(".")[0] for r in ours}), namespace)


def _bundle_of(job: Job, model: Reference, references: Sequence[Reference], notebook: Notebook | None) -> Bundle:
    sources = {reference.source for reference in references if reference.source is not None}
    first = model.source or min(sources, key=lambda source: source.path, default=None)
    return make_bundle(
        sorted(sources, key=lambda source: source.path),
        include=job.include,
        include_root=first.root if first is not None else Path.cwd(),
        extra={f"{notebook.name}.py": notebook.source} if notebook else None,
    )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
