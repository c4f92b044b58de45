"""Ctrl-C on real processes of the command line: they end in bounded time, and say what becomes of the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipesvc.client import connection
from pipesvc.client.connection import Client
from pipesvc.client.local import LocalCluster
from pipesvc.rpc.v1 import run_pb2
from tests.integration.client_fake import PLAN, FakeRuns, job, run_event, serving, step_event

LIMIT_S = 30.0
Start = Callable[..., "subprocess.Popen[str]"]

_JOB = """
import torch
import pipesvc

def build():
    return torch.nn.Sequential(torch.nn.Linear(2, 2))

def reader():
    yield torch.zeros(2), torch.zeros(2)

options = dict(model=build, loss=torch.nn.functional.mse_loss, optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1))
job = pipesvc.Job(data=pipesvc.DataSource(reader, batch_size=4), **options)
streamed = pipesvc.Job(data=pipesvc.StreamSource([], batch_size=4), **options)
"""


@pytest.fixture
def fake() -> FakeRuns:
    return FakeRuns()


@pytest.fixture
def start(fake: FakeRuns, tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "ctrl_c_job.py").write_text(_JOB)
    started: list[subprocess.Popen[str]] = []
    with serving(fake) as address:
        environment = os.environ | {
            "PIPESVC_COORDINATOR": address,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }

        def run(*arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipesvc", *arguments],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            return process

        yield run
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def _read_until(stream: object, words: str) -> None:
    for line in stream:  # type: ignore[attr-defined]
        if words in line:
            return
    raise AssertionError(f"{words!r} never came")


@pytest.mark.parametrize("gap_s", [0.0, 0.0002, 0.0005, 0.001, 0.003, 0.01])
def test_two_interrupts_in_a_row_end_the_command(fake: FakeRuns, start: Start, gap_s: float) -> None:
    fake.watches = [[run_event("RUNNING"), step_event(1), "hold"]]
    process = start("watch", "r")
    _read_until(process.stderr, "step 1")
    process.send_signal(signal.SIGINT)
    end = time.perf_counter() + gap_s
    while time.perf_counter() < end:
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert "The run r goes on" in errors
    assert "Traceback" not in errors


def test_submit_names_the_run_at_once_and_what_it_waits_for(fake: FakeRuns, start: Start) -> None:
    awaited = run_pb2.Awaited(what="2 more workers", from_whom="the cluster")
    fake.watches = [[run_event("WAITING", awaited=[awaited]), "hold"]]
    process = start("submit", "ctrl_c_job.py:job", "--run-id", "r")
    assert process.stdout is not None
    assert process.stdout.readline() == "r\n"
    _read_until(process.stderr, "r: WAITING: waits for 2 more workers from the cluster")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "The run r goes on" in errors
    assert "pipesvc cancel r" in errors
    assert fake.num_cancels == 0


@pytest.mark.parametrize("has_plan", [False, True])
def test_a_streamed_run_is_cancelled_with_its_process(fake: FakeRuns, start: Start, has_plan: bool) -> None:
    fake.is_new = True
    planned = [[run_event("BUILDING", plan_json=PLAN.to_json())]] if has_plan else []
    fake.watches = [*planned, [run_event("WAITING", awaited=[run_pb2.Awaited(what="something")]), "hold"]]
    process = start("submit", "ctrl_c_job.py:streamed", "--run-id", "r")
    _read_until(process.stderr, "something")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "ends with its stream" in errors
    assert "r: CANCELLED" in errors
    assert "goes on" not in errors
    assert fake.num_cancels == 1


def test_in_python_the_interrupt_says_that_a_local_cluster_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with LocalCluster(num_workers=1, num_threads=1) as client:
        monkeypatch.setattr(connection, "await_plan", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            client.submit(job(), "r")
    [note] = caught.value.__notes__
    assert "The run r ends with its LocalCluster" in note
    assert "until then: client.attach('r')" in note
    assert "goes on" not in note
    assert "pipesvc watch" not in note


def test_in_python_the_interrupt_names_the_run(fake: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with serving(fake) as address, Client(address) as client:
        monkeypatch.setattr(connection, "await_plan", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            client.submit(job(), "r")
    [note] = caught.value.__notes__
    assert "The run r goes on" in note
    assert "pipesvc cancel r" in note
