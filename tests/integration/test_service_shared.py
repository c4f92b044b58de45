"""Clients that come and go: tests that leave a service as they found it share one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs
from tests.integration.terminal import (
    Terminal,
    children_of_workers,
    open_terminal,
    small_job,
    start_service,
)
from tests.waiting import until


@pytest.fixture(scope="module")
def shared_terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """For tests that leave the service as they found it."""
    with open_terminal(tmp_path_factory.mktemp("shared")) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_service(shared_terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> str:
    return start_service(shared_terminal, tmp_path_factory.mktemp("service"))


def test_w02_a_dead_proxy_harms_nothing(
    shared_service: str, shared_terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    with pipesvc.connect(shared_service) as client:
        run = client.submit(small_job())
        run.wait()
        assert len(run.losses()) == 10


def test_a_run_outlives_its_client_and_is_attached_by_its_id(shared_service: str) -> None:
    with pipesvc.connect(shared_service) as client:
        run_id = client.submit(small_job(num_rows=400), run_id="mine").run_id
    with pipesvc.connect(shared_service) as client:
        run = client.attach(run_id)
        indices = [step.index for step in run.steps()]
        assert indices == list(range(1, 51))
        again = client.submit(small_job(num_rows=400), run_id="mine")
        assert again.run_id == run_id
        assert len(again.losses()) == 50
        with pytest.raises(PipesvcError) as caught:
            client.submit(small_job(num_rows=80), run_id="mine")
    assert caught.value.code == ErrorCode.RUN_EXISTS


def test_cancel_by_command_and_the_queue_goes_on(
    shared_service: str, shared_terminal: Terminal, tmp_path: Path
) -> None:
    with pipesvc.connect(shared_service) as client:
        first = client.submit(small_job(num_rows=100_000), run_id="first")
        next(first.steps())
        second = client.submit(small_job(), run_id="second")
        listed = shared_terminal.run("runs", "--coordinator", shared_service).stdout
        assert "first" in listed
        assert "QUEUED" in listed
        assert shared_terminal.run("cancel", "first", "--coordinator", shared_service).returncode == 0
        second.wait()
        assert first.state == "CANCELLED"
    out = tmp_path / "second.safetensors"
    assert shared_terminal.run("weights", "second", "--out", str(out), "--coordinator", shared_service).returncode == 0
    from safetensors.torch import load_file

    jobs.mlp(2).load_state_dict(load_file(out), strict=True)


LONG_JOBS = """
import pipesvc
import torch
from tests.integration import jobs

options = dict(
    model=pipesvc.Call(jobs.mlp, depth=2),
    loss=jobs.cross_entropy,
    optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
    strategy=pipesvc.Strategy(micro_batches=4, num_stages=2),
)
call = pipesvc.Call(jobs.slow_samples, num_rows=1600, pause_s=0.002)
source = pipesvc.Job(data=pipesvc.DataSource(call, batch_size=8), **options)
stream = pipesvc.Job(data=pipesvc.StreamSource(jobs.slow_samples(100_000, 0.002), batch_size=8), **options)
"""


def test_f24_after_ctrl_c_in_the_client_the_workers_are_idle_and_serve_the_next_job(
    shared_service: str, shared_terminal: Terminal, tmp_path: Path
) -> None:
    """A run with its source on a worker goes on without its client; a streamed one ends with it."""
    (tmp_path / "long_jobs.py").write_text(LONG_JOBS)
    for job, state in (("source", "COMPLETED"), ("stream", "CANCELLED")):
        command = (f"{tmp_path}/long_jobs.py:{job}", "--coordinator", shared_service, "--run-id", job)
        submit = shared_terminal.start("submit", *command, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        with pipesvc.connect(shared_service) as client:
            until(lambda job=job: any(run.run_id == job for run in client.runs()), "run")  # type: ignore[misc]
            run = client.attach(job)
            next(run.steps())
            submit.send_signal(signal.SIGINT)
            assert submit.wait(20) == 130
            until(lambda run=run, state=state: run.state == state, state, 40)  # type: ignore[misc]
            assert len(run.losses()) == 200 if state == "COMPLETED" else run.losses()
            assert children_of_workers(shared_terminal) == []
            following = client.submit(small_job())
            following.wait()
            assert len(following.losses()) == 10


def test_a_wrong_token_is_refused(shared_service: str, shared_terminal: Terminal) -> None:
    done = shared_terminal.run("status", "--coordinator", shared_service, PIPESVC_TOKEN="wrong")
    assert done.returncode == 9
    assert "UNAUTHENTICATED" in done.stderr
