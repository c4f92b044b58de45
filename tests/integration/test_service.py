"""The service as its users meet it: commands, starting in any order, addresses, ends."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs
from tests.integration.terminal import (
    Terminal,
    free_port,
    open_terminal,
    small_job,
    start_service,
)
from tests.waiting import until


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with open_terminal(tmp_path) as opened:
        yield opened


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
    return start_service(terminal, tmp_path)


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


def test_sigterm_drains_a_worker_after_its_run(service: str, terminal: Terminal) -> None:
    with pipesvc.connect(service) as client:
        run = client.submit(small_job(num_rows=400))
        next(run.steps())
        worker = next(process for process in terminal.started if "b" in psutil.Process(process.pid).cmdline())
        worker.terminate()
        run.wait()
        assert len(run.losses()) == 50
    assert worker.wait(20) == 0
