"""Bad input and failing user code: one clear error at the client, and the same workers serve the next job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs


def make_job(model: Callable[..., Any] | pipesvc.Call, **changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": model,
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        "data": pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=80), batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=2),
    }
    return pipesvc.Job(**(options | changes))


def failure(cluster: pipesvc.Client, job: pipesvc.Job) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(job).wait()
    return caught.value


def assert_still_serves(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(pipesvc.Call(jobs.mlp, depth=1)))
    run.wait()
    assert len(run.losses()) == 10


def test_f12_f13_an_exception_in_a_stage_reaches_the_client_with_its_place(cluster: pipesvc.Client) -> None:
    """The 10th call of stage 1 is micro-batch 1 of step 3."""
    error = failure(cluster, make_job(pipesvc.Call(jobs.faulty, kind="raise", at_call=10)))
    details = error.details
    assert error.code == ErrorCode.STAGE_FAILED
    assert details.exception_type == "ValueError"
    assert "boom" in details.message
    assert '  File "tests/integration/jobs.py", line ' in details.traceback
    assert (details.where.step, details.where.stage, details.where.micro_batch) == (3, 1, 1)
    assert details.where.worker.startswith("worker")
    assert details.where.host
    assert_still_serves(cluster)


def test_the_log_of_a_failed_run_names_files_as_the_user_does(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(pipesvc.Call(jobs.faulty, kind="raise", at_call=10)))
    with pytest.raises(PipesvcError, match="boom"):
        run.wait()
    text = "\n".join(line.line for line in run.logs())
    assert '  File "tests/integration/jobs.py", line ' in text
    assert "/bundle/" not in text


def test_a_stage_that_dies_is_named_with_its_signal_and_last_words(cluster: pipesvc.Client) -> None:
    error = failure(cluster, make_job(pipesvc.Call(jobs.faulty, kind="segfault", at_call=5)))
    assert error.code == ErrorCode.CHILD_DIED
    assert "SIGSEGV" in error.details.message
    assert "about to go" in error.details.last_words
    assert_still_serves(cluster)


def test_a_loss_that_is_not_finite_is_named_when_asked(cluster: pipesvc.Client) -> None:
    error = failure(cluster, make_job(pipesvc.Call(jobs.faulty, kind="nan", at_call=5), check_finite=True))
    assert error.code == ErrorCode.NON_FINITE_LOSS
    assert (error.details.where.step, error.details.where.micro_batch) == (2, 0)


def test_shapes_that_do_not_fit_between_stages_are_named(cluster: pipesvc.Client) -> None:
    """They are found when the job is submitted, with the stage of the layer that refused them."""
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(jobs.mismatched))
    error = caught.value
    assert error.code == ErrorCode.STAGE_FAILED
    assert "mat1 and mat2 shapes cannot be multiplied" in error.details.message
    assert error.details.where.stage == 1


@pytest.mark.parametrize(
    ("optimizer", "code", "text"),
    [
        (pipesvc.Optimizer(torch.optim.Adam, lrr=0.1), ErrorCode.BUILD_FAILED, "unexpected keyword argument 'lrr'"),
        (pipesvc.Optimizer(torch.optim.SGD, lr=-1.0), ErrorCode.BUILD_FAILED, "Invalid learning rate: -1.0"),
        (pipesvc.Optimizer(torch.nn.ParameterList), ErrorCode.INVALID_JOB, "is a ParameterList, not"),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_refused_at_submit(
    cluster: pipesvc.Client, optimizer: pipesvc.Optimizer, code: ErrorCode, text: str
) -> None:
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(pipesvc.Call(jobs.mlp, depth=1), optimizer=optimizer))
    assert caught.value.code == code
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("model", "code", "text"),
    [
        (jobs.misplaced, ErrorCode.UNKNOWN_DEVICE, "cpu:0"),
        (jobs.on_gpu, ErrorCode.UNKNOWN_DEVICE, "gpu:7"),
        (jobs.breaks_while_building, ErrorCode.BUILD_FAILED, "no model today"),
        (jobs.needs_a_package, ErrorCode.IMPORT_FAILED, "a_package_that_nobody_has"),
    ],
)
def test_a_model_that_cannot_be_placed_or_built_is_refused_at_submit(
    cluster: pipesvc.Client, model: Callable[[], Any], code: ErrorCode, text: str
) -> None:
    strategy = pipesvc.Strategy(micro_batches=4)
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(model, strategy=strategy))
    assert caught.value.code == code
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("placement", "code", "text"),
    [
        ({"stage:0": "nobody"}, ErrorCode.UNKNOWN_WORKER, "nobody"),
        ({"stage:0": "worker-0/cuda:3"}, ErrorCode.UNKNOWN_DEVICE, "cuda:3"),
        ({"stage:9": "worker-0"}, ErrorCode.INVALID_PLAN, "stage:9"),
    ],
)
def test_p07_a_placement_that_does_not_exist_is_refused_at_submit(
    cluster: pipesvc.Client, placement: dict[str, str], code: ErrorCode, text: str
) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=2, placement=placement)
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(pipesvc.Call(jobs.mlp, depth=2), strategy=strategy))
    assert caught.value.code == code
    assert text in str(caught.value)


def test_f19_a_worker_that_never_comes_is_an_error_at_the_set_time(cluster: pipesvc.Client) -> None:
    job = make_job(
        pipesvc.Call(jobs.mlp, depth=4), strategy=pipesvc.Strategy(micro_batches=4, num_stages=6), worker_wait_s=1.0
    )
    error = failure(cluster, job)
    assert error.code == ErrorCode.MISSING_WORKER
    assert "4 of 6" in str(error)
    assert_still_serves(cluster)


def test_a16_an_exception_of_the_source_fails_the_run_with_its_traceback(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(pipesvc.Call(jobs.source_that_raises, num_rows=20), batch_size=8)
    error = failure(cluster, make_job(pipesvc.Call(jobs.mlp, depth=1), data=data))
    assert error.code == ErrorCode.DATA_SOURCE_FAILED
    assert error.details.exception_type == "KeyError"
    assert "row 17 is torn" in error.details.message
    assert "source_that_raises" in error.details.traceback


def test_f16_a_source_that_blocks_is_named_at_the_set_time(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(pipesvc.Call(jobs.source_that_blocks, num_rows=20), batch_size=8, timeout_s=1.5)
    started = time.monotonic()
    error = failure(cluster, make_job(pipesvc.Call(jobs.mlp, depth=1), data=data))
    assert error.code == ErrorCode.DATA_SOURCE_TIMED_OUT
    assert 1.5 < time.monotonic() - started < 40
    assert_still_serves(cluster)


def test_f15_a_source_that_is_only_slow_is_waited_for(cluster: pipesvc.Client) -> None:
    """Nine seconds are three times the limit after which a silent worker counts as lost."""
    data = pipesvc.DataSource(pipesvc.Call(jobs.late_source, pause_s=9.0, num_rows=16), batch_size=8)
    run = cluster.submit(make_job(pipesvc.Call(jobs.mlp, depth=1), data=data))
    run.wait()
    assert len(run.losses()) == 2


def test_what_user_code_prints_reaches_the_logs(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(pipesvc.Call(jobs.faulty, kind="print", at_call=3)))
    run.wait()
    lines = {entry.line: entry for entry in run.logs()}
    assert not lines["a line of the user's code"].is_stderr
    assert lines["a line on stderr"].is_stderr
