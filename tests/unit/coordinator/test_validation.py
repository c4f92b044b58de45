"""Jobs that no run could come of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from pipesvc.coordinator.limits import BUNDLE_BYTES, SAMPLE_BYTES
from pipesvc.coordinator.validation import check_submission
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2
from tests.unit.coordinator.coordinator_world import make_job


def test_a_good_job_passes_with_and_without_a_bundle() -> None:
    check_submission("run-1", make_job(), b"")
    job = make_job()
    with_optimizer(groups=[{"pattern": "*.bias", "options_json": '{"lr": 0.1}'}])(job)
    with_scaler()(job)
    job.bundle_sha256 = hashlib.sha256(b"zip").hexdigest()
    check_submission("run-1", job, b"zip")


def without_source(job: job_pb2.JobSpec) -> None:
    job.data.ClearField("source")


def with_strategy(**changes: Any) -> Callable[[job_pb2.JobSpec], None]:
    return lambda job: job.strategy.MergeFrom(job_pb2.StrategySpec(**changes))


def with_schedule(name: str, text: str) -> Callable[[job_pb2.JobSpec], None]:
    def spoil(job: job_pb2.JobSpec) -> None:
        job.strategy.schedule, job.strategy.schedule_text = name, text

    return spoil


def clipped_twice(job: job_pb2.JobSpec) -> None:
    job.clip_norm = job.clip_value = 1.0


def accumulating(job: job_pb2.JobSpec) -> None:
    with_schedule("file", "0F0,0F1,0B0,0B1")(job)
    job.accumulate = 2


def with_scaler(**changes: float) -> Callable[[job_pb2.JobSpec], None]:
    def spoil(job: job_pb2.JobSpec) -> None:
        good: dict[str, Any] = {"init_scale": 1, "growth_factor": 2, "backoff_factor": 0.5, "growth_interval": 1}
        job.grad_scaler.CopyFrom(job_pb2.GradScalerSpec(**(good | changes)))

    return spoil


def with_optimizer(**fields: Any) -> Callable[[job_pb2.JobSpec], None]:
    def spoil(job: job_pb2.JobSpec) -> None:
        job.optimizers.add(make=job.optimizer, **fields)
        job.ClearField("optimizer")

    return spoil


def with_builders(boundaries: list[int], *targets: str) -> Callable[[job_pb2.JobSpec], None]:
    def spoil(job: job_pb2.JobSpec) -> None:
        job.ClearField("model")
        for target in targets:
            job.stage_models.add(target=target)
        job.strategy.is_pipelined = True
        job.strategy.boundaries[:] = boundaries

    return spoil


def with_optimizers_by_name(job: job_pb2.JobSpec) -> None:
    with_builders([1], "a:b", "a:b")(job)
    with_optimizer(pattern="*")(job)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda job: setattr(job.data, "batch_size", 1), "a batch of 1 rows cannot be cut into 2 micro-batches"),
        (lambda job: setattr(job.strategy, "schedule", "2F2B"), "choose one of naive, GPipe, 1F1B"),
        (with_schedule("file", ""), "schedule file, the file: has no action"),
        (with_schedule("file", "0F0,0B0"), "it has 1 micro-batches, and a step has micro_batches=2"),
        (with_schedule("file", "0F0,0F1,0B1,0B0"), "row 1, column 4: 0B0 comes after 0B1: Micro-batches of a stage"),
        (with_schedule("1F1B", "0F0,0B0"), "the schedule is '1F1B' and has the text of a file"),
        (with_schedule("inference", ""), "choose one of naive, GPipe, 1F1B"),
        (
            with_strategy(recomputes_all=True, recompute_patterns=["a"]),
            "for all modules and by patterns: one of the two",
        ),
        (
            with_strategy(compiles=True, recompute_patterns=["a"]),
            "compile and patterns of recompute exclude each other",
        ),
        (
            with_strategy(codecs=[{"activations": 9, "gradients": 1}]),
            "the codec of all links is number 9, which is not known here",
        ),
        (with_strategy(codecs=[{"later_stage": 1, "gradients": 1}]), "the codec of 0>1 is unspecified"),
        (with_strategy(codecs=2 * [{"activations": 1, "gradients": 1}]), "codecs of all links are given twice"),
        (
            with_strategy(codecs=[{"earlier_stage": 2, "later_stage": 2, "activations": 1, "gradients": 1}]),
            "codecs are given for 2>2: write the earlier stage first",
        ),
        (
            with_strategy(compiles=True, schedule="ZBH1"),
            "the schedule ZBH1 splits backwards into I and W, and compile makes them whole",
        ),
        (lambda job: setattr(job.strategy, "micro_batches", 0), "micro_batches is 0"),
        (
            lambda job: (job.strategy.boundaries.append(1), job.strategy.boundary_names.append("a")),
            "by index and by name: one of the two",
        ),
        (lambda job: job.strategy.boundaries.extend([3, 1]), "boundaries [3, 1] do not ascend"),
        (lambda job: job.ClearField("model"), "the job has no model"),
        (lambda job: job.stage_models.add(target="a:b"), "a model and builders of stages: one of the two"),
        (with_builders([1], "a:b", "a:b", "a:b"), "3 builders of stages, and its boundaries are [1]"),
        (with_optimizers_by_name, "which know no names of each other, and optimizers by name"),
        (with_builders([1], "a:b", "rm -r"), "the model of stage 1 is 'rm -r', which is not"),
        (lambda job: job.ClearField("optimizer"), "the job has no optimizer"),
        (lambda job: job.optimizers.add(make=job.optimizer), "one optimizer for all parameters, and a list of them"),
        (with_optimizer(group_rule={"target": "no name"}), "group rule of the optimizer is 'no name'"),
        (with_optimizer(groups=[{"pattern": "*.b", "options_json": "[1]"}]), "group '*.b' are not a JSON object"),
        (
            with_optimizer(groups=[{"pattern": "b", "options_json": "{}"}], group_rule={"target": "a:b"}),
            "by patterns and by a function: one of the two",
        ),
        (lambda job: job.scheduler.make.CopyFrom(job.model), "stepped is the unknown number 0"),
        (lambda job: job.model.functions.update(act="no name"), "the argument act of model is 'no name'"),
        (lambda job: setattr(job.model, "target", "os.system('rm')"), 'not "package.module:name"'),
        (lambda job: setattr(job.loss, "arguments_json", "[1]"), "arguments of loss are not a JSON object"),
        (lambda job: setattr(job.loss, "arguments_json", "{"), "arguments of loss are not a JSON object"),
        (without_source, "has a source or is streamed"),
        (lambda job: setattr(job.data, "is_streamed", True), "has a source or is streamed"),
        (lambda job: setattr(job.data.first, "structure", "[]"), "has a first batch and is not streamed"),
        (
            lambda job: setattr(job.data.first, "structure", "x" * (SAMPLE_BYTES + 1)),
            "the first batch of the stream has",
        ),
        (lambda job: setattr(job.data, "yields", 77), "unknown number 77"),
        (lambda job: setattr(job.data, "batch_size", 0), "batch_size is 0"),
        (lambda job: setattr(job.data, "capacity", 0), "capacity is 0"),
        (lambda job: setattr(job.data, "timeout_s", float("nan")), "the data source's timeout is nan"),
        (lambda job: setattr(job, "epochs", 0), "the run would have no end"),
        (lambda job: setattr(job, "clip_norm", -1.0), "clip_norm is -1"),
        (lambda job: setattr(job, "accumulate", 1 << 20), "a step has 2 x 1048576 micro-batches"),
        (lambda job: setattr(job, "autocast", 9), "autocast is the unknown number 9"),
        (with_scaler(init_scale=0), "init_scale of the scaler is 0"),
        (with_scaler(init_scale=1e39), "init_scale of the scaler is 1e+39"),
        (with_scaler(growth_factor=1), "the scaler grows by 1.0 and backs off by 0.5"),
        (with_scaler(backoff_factor=1), "the scaler grows by 2.0 and backs off by 1.0"),
        (with_scaler(growth_interval=0), "growth_interval of the scaler is 0"),
        (accumulating, "a schedule file orders the micro-batches of one mini-batch, and accumulate joins several"),
        (clipped_twice, "clip_norm and clip_value are both given: one of the two"),
        (lambda job: setattr(job, "step_timeout_s", 0.0), "step_timeout_s is 0"),
        (lambda job: setattr(job, "name", "n" * 201), "201 characters"),
        (lambda job: setattr(job.model, "arguments_json", " " * (1 << 20)), "at most 1048576 are allowed"),
    ],
)
def test_p09_a_job_that_cannot_run_is_refused_with_its_fault(
    spoil: Callable[[job_pb2.JobSpec], None], said: str
) -> None:
    job = make_job()
    spoil(job)
    with pytest.raises(PipesvcError) as caught:
        check_submission("r", job, b"")
    assert caught.value.code == ErrorCode.INVALID_JOB
    assert said in str(caught.value)


def test_a_job_with_a_schedule_file_passes() -> None:
    job = make_job()
    with_schedule("file", "0F0,0F1,0B0,0B1")(job)
    check_submission("run-1", job, b"")


def test_all_faults_are_said_at_once() -> None:
    job = make_job(micro_batches=9)
    job.worker_wait_s = -1
    with pytest.raises(PipesvcError, match=r"9 micro-batches.*; worker_wait_s is -1"):
        check_submission("r", job, b"")


@pytest.mark.parametrize("run_id", ["", "../up", ".hidden", "a/b", "x" * 65, "a\n"])
def test_run_ids_that_are_no_directory_names_are_refused(run_id: str) -> None:
    with pytest.raises(PipesvcError, match="a run id has"):
        check_submission(run_id, make_job(), b"")


@pytest.mark.parametrize(
    ("sha256", "bundle"),
    [("", b"zip"), ("0" * 64, b""), ("0" * 64, b"zip"), ("0" * 64, b"0" * (BUNDLE_BYTES + 1))],
)
def test_bundles_that_are_not_what_the_job_names_are_refused(sha256: str, bundle: bytes) -> None:
    job = make_job()
    job.bundle_sha256 = sha256
    with pytest.raises(PipesvcError) as caught:
        check_submission("r", job, bundle)
    assert caught.value.code == ErrorCode.BUNDLE_REFUSED
