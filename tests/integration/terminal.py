"""Terminals in which a person starts the service by hand, for tests of the service as its users meet it."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

import pipesvc
from tests.integration import jobs
from tests.waiting import until


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


@contextlib.contextmanager
def open_terminal(folder: Path) -> Iterator[Terminal]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPESVC_HOME", str(folder / "home"))
        opened = Terminal(folder / "home")
        yield opened
        opened.close()


def free_port() -> int:
    """Below the range of outgoing sockets: a worker that dials a closed port of that range may take it itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def small_job(num_stages: int = 2, num_rows: int = 80) -> pipesvc.Job:
    return pipesvc.Job(
        model=pipesvc.Call(jobs.mlp, depth=2),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(pipesvc.Call(jobs.slow_samples, num_rows=num_rows, pause_s=0.005), batch_size=8),
        strategy=pipesvc.Strategy(micro_batches=4, num_stages=num_stages),
    )


def start_service(terminal: Terminal, folder: Path) -> str:
    """A coordinator and two workers on loopback, started by hand, behind a dead proxy (W02)."""
    address = f"127.0.0.1:{free_port()}"
    dead = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    terminal.start("coordinator", "--listen", address, "--state-dir", str(folder / "state"), **dead)
    for name in ("a", "b"):
        terminal.start("worker", "--coordinator", address, "--name", name, "--device", "cpu", **dead)
    until(lambda: terminal.run("status", "--coordinator", address).stdout.count("cpu") >= 2, "workers")
    return address


def children_of_workers(terminal: Terminal) -> list[int]:
    """Processes below the workers' nurseries: executors, feeders, inspectors."""
    workers = [psutil.Process(process.pid) for process in terminal.started if "worker" in process.args]  # type: ignore[operator]
    nurseries = [nursery for worker in workers for nursery in worker.children()]
    assert len(nurseries) == len(workers) == 2
    return [child.pid for nursery in nurseries for child in nursery.children()]
