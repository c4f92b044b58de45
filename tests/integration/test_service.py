"""The service as its users meet it: commands, starting in any order, addresses, tokens, clients that come and go."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs

START_S = 20.0


class Terminal:
    """Starts `pipesvc` commands as a person would, and ends those that it started."""

    def __init__(self, home: Path) -> None:
        self.env = {**os.environ, "PIPESVC_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipesvc", *arguments],
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipesvc", *arguments],
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    home = tmp_path / "home"
    monkeypatch.setenv("PIPESVC_HOME", str(home))
    opened = Terminal(home)
    yield opened
    opened.close()


def free_port() -> int:
    """Below the range of outgoing sockets: a worker that dials a closed port of that range may take it itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until(condition: Callable[[], bool], what: str, within_s: float = START_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {within_s} s"
        time.sleep(0.05)


def small_job(num_stages: int = 2, num_rows: int = 80) -> pipesvc.Job:
    return pipesvc.Job(
        model=pipesvc.Call(jobs.mlp, depth=2),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(pipesvc.Call(jobs.slow_samples, num_rows=num_rows, pause_s=0.005), batch_size=8),
        strategy=pipesvc.Strategy(micro_batches=4, num_stages=num_stages),
    )


def test_f19_workers_first_coordinator_later(terminal: Terminal, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    token = tmp_path / "state" / "token"
    for name in ("a", "b"):
        terminal.start("worker", "--coordinator", address, "--name", name, "--device", "cpu")
    time.sleep(2)
    terminal.start("coordinator", "--listen", address, "--state-dir", str(token.parent))
    until(lambda: terminal.run("status", "--coordinator", address).returncode == 0, "coordinator")
    with pipesvc.connect(address) as client:
        run = client.submit(small_job())
        run.wait()
        assert len(run.losses()) == 10
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_f19_status_names_the_worker_that_is_missing_and_the_run_starts_when_it_comes(
    terminal: Terminal, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    terminal.start("coordinator", "--listen", address, "--state-dir", str(tmp_path / "state"))
    until(lambda: terminal.run("status", "--coordinator", address).returncode == 0, "coordinator")
    terminal.start("worker", "--coordinator", address, "--name", "a", "--device", "cpu")
    job_file = Path(jobs.__file__).with_name("small.py")
    submit = terminal.start("submit", f"{job_file}:job", "--coordinator", address)
    until(lambda: "1 of 2 workers" in terminal.run("status", "--coordinator", address).stdout, "named wait", 40)
    terminal.start("worker", "--coordinator", address, "--name", "b", "--device", "cpu")
    assert submit.wait(60) == 0


def test_f18_a_wrong_address_is_one_clear_line(terminal: Terminal) -> None:
    address = f"127.0.0.1:{free_port()}"
    started = time.monotonic()
    done = terminal.run("status", "--coordinator", address)
    assert done.returncode == 8
    assert address in done.stderr
    assert "COORDINATOR_ABSENT" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert time.monotonic() - started < 30
    worker = terminal.run("worker", "--coordinator", address, "--name", "a", "--coordinator-wait", "1")
    assert worker.returncode == 8
    assert address in worker.stderr


def test_w03_a_port_that_is_taken_is_named(terminal: Terminal, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = terminal.run("coordinator", "--listen", address, "--state-dir", str(tmp_path))
    assert done.returncode == 7
    assert "PORT_TAKEN" in done.stderr
    assert address in done.stderr


def test_every_port_is_closed_to_the_network_by_default(terminal: Terminal, tmp_path: Path) -> None:
    done = terminal.run("coordinator", "--listen", "0.0.0.0:0", "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert "--insecure" in done.stderr


@pytest.fixture
def service(terminal: Terminal, tmp_path: Path) -> str:
    """A coordinator and two workers on loopback, started by hand, behind a dead proxy (W02)."""
    address = f"127.0.0.1:{free_port()}"
    dead = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    terminal.start("coordinator", "--listen", address, "--state-dir", str(tmp_path / "state"), **dead)
    for name in ("a", "b"):
        terminal.start("worker", "--coordinator", address, "--name", name, "--device", "cpu", **dead)
    until(lambda: terminal.run("status", "--coordinator", address).stdout.count("cpu") >= 2, "workers")
    return address


def test_w02_a_dead_proxy_harms_nothing(service: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    with pipesvc.connect(service) as client:
        run = client.submit(small_job())
        run.wait()
        assert len(run.losses()) == 10


def test_a_run_outlives_its_client_and_is_attached_by_its_id(service: str) -> None:
    with pipesvc.connect(service) as client:
        run_id = client.submit(small_job(num_rows=400), run_id="mine").run_id
    with pipesvc.connect(service) as client:
        run = client.attach(run_id)
        indices = [step.index for step in run.steps()]
        assert indices == list(range(1, 51))
        again = client.submit(small_job(num_rows=400), run_id="mine")
        assert again.run_id == run_id
        assert len(again.losses()) == 50
        with pytest.raises(PipesvcError) as caught:
            client.submit(small_job(num_rows=80), run_id="mine")
    assert caught.value.code == ErrorCode.RUN_EXISTS


def test_cancel_by_command_and_the_queue_goes_on(service: str, terminal: Terminal, tmp_path: Path) -> None:
    with pipesvc.connect(service) as client:
        first = client.submit(small_job(num_rows=100_000), run_id="first")
        next(first.steps())
        second = client.submit(small_job(), run_id="second")
        listed = terminal.run("runs", "--coordinator", service).stdout
        assert "first" in listed
        assert "QUEUED" in listed
        assert terminal.run("cancel", "first", "--coordinator", service).returncode == 0
        second.wait()
        assert first.state == "CANCELLED"
    out = tmp_path / "second.safetensors"
    assert terminal.run("weights", "second", "--out", str(out), "--coordinator", service).returncode == 0
    from safetensors.torch import load_file

    jobs.mlp(2).load_state_dict(load_file(out), strict=True)


def test_f24_workers_serve_a_restarted_coordinator(service: str, terminal: Terminal, tmp_path: Path) -> None:
    with pipesvc.connect(service) as client:
        run = client.submit(small_job(num_rows=100_000), run_id="cut-off")
        next(run.steps())
        terminal.started[0].kill()
        with pytest.raises(PipesvcError) as caught:
            run.wait()
        assert caught.value.code == ErrorCode.COORDINATOR_LOST
    terminal.start("coordinator", "--listen", service, "--state-dir", str(tmp_path / "state"))
    until(lambda: terminal.run("status", "--coordinator", service).stdout.count("cpu") >= 2, "workers again")
    with pipesvc.connect(service) as client:
        with pytest.raises(PipesvcError) as caught:
            client.attach("cut-off").wait()
        assert caught.value.code == ErrorCode.COORDINATOR_RESTARTED
        again = client.submit(small_job())
        again.wait()
        assert len(again.losses()) == 10


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


def children_of_workers(terminal: Terminal) -> list[int]:
    """Processes below the workers' nurseries: executors, feeders, inspectors."""
    workers = [psutil.Process(process.pid) for process in terminal.started if "worker" in process.args]  # type: ignore[operator]
    nurseries = [nursery for worker in workers for nursery in worker.children()]
    assert len(nurseries) == len(workers) == 2
    return [child.pid for nursery in nurseries for child in nursery.children()]


def test_f24_after_ctrl_c_in_the_client_the_workers_are_idle_and_serve_the_next_job(
    service: str, terminal: Terminal, tmp_path: Path
) -> None:
    """A run with its source on a worker goes on without its client; a streamed one ends with it."""
    (tmp_path / "long_jobs.py").write_text(LONG_JOBS)
    for job, state in (("source", "COMPLETED"), ("stream", "CANCELLED")):
        command = (f"{tmp_path}/long_jobs.py:{job}", "--coordinator", service, "--run-id", job)
        submit = terminal.start("submit", *command, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        with pipesvc.connect(service) as client:
            until(lambda job=job: any(run.run_id == job for run in client.runs()), "run")  # type: ignore[misc]
            run = client.attach(job)
            next(run.steps())
            submit.send_signal(signal.SIGINT)
            assert submit.wait(20) == 130
            until(lambda run=run, state=state: run.state == state, state, 40)  # type: ignore[misc]
            assert len(run.losses()) == 200 if state == "COMPLETED" else run.losses()
            assert children_of_workers(terminal) == []
            following = client.submit(small_job())
            following.wait()
            assert len(following.losses()) == 10


def test_a_wrong_token_is_refused(service: str, terminal: Terminal) -> None:
    done = terminal.run("status", "--coordinator", service, PIPESVC_TOKEN="wrong")
    assert done.returncode == 9
    assert "UNAUTHENTICATED" in done.stderr


def test_sigterm_drains_a_worker_after_its_run(service: str, terminal: Terminal) -> None:
    with pipesvc.connect(service) as client:
        run = client.submit(small_job(num_rows=400))
        next(run.steps())
        worker = next(process for process in terminal.started if "b" in psutil.Process(process.pid).cmdline())
        worker.terminate()
        run.wait()
        assert len(run.losses()) == 50
    assert worker.wait(20) == 0
