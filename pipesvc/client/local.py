"""A coordinator and workers on this machine, for as long as one object lives.

They are the real service in processes of their own, not a simulation in threads, so what works here works on
hosts. Each process holds the read end of a pipe whose only write end is here: when this process ends, however it
does, the pipe closes and they end too, with their children. (A parent-death signal would not do: it fires when the
thread ends that started the process.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from pipesvc.client import checks
from pipesvc.client.connection import Client, refuse_inside_worker
from pipesvc.client.job import Job
from pipesvc.errors import CATALOGUE, ErrorCode, PipesvcError
from pipesvc.lifeline import FOLDER_PREFIX, FOLDER_VARIABLE, LIFELINE_VARIABLE

# Seconds. Starting takes about two on an idle machine; the processes end within milliseconds of the pipe's end.
START_S: Final = 60.0
END_S: Final = 10.0
_POLL_S: Final = 0.05
_NUM_TRIES: Final = 3
_NUM_LAST_LINES: Final = 5
# Processes, each of which starts Python and imports torch; threads of one, where the worker refuses more.
MAX_WORKERS: Final = 256
MAX_THREADS: Final = 1024

# Write ends of this process's pipes. A forked child would hold them open beyond the death of this process.
_lifelines: Final[set[int]] = set()


def _close_in_child() -> None:
    for descriptor in _lifelines:
        os.close(descriptor)
    _lifelines.clear()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(kw_only=True, slots=True)
class _Processes:
    """What has to be ended; apart from the cluster object, so that a finalizer may hold it."""

    owner_pid: int
    scratch: Path
    lock: int
    lifeline_read: int
    lifeline_write: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def log_of(self, name: str) -> Path:
        return self.scratch / f"{name}.log"

    def start(self, name: str, arguments: Sequence[str]) -> None:
        environment = os.environ | {
            LIFELINE_VARIABLE: str(self.lifeline_read),
            FOLDER_VARIABLE: str(self.scratch),
            "PIPESVC_HOME": str(self.scratch / "home"),
            "TMPDIR": str(self.scratch),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, _search_path()))),
        }
        with self.log_of(name).open("wb") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "pipesvc", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(self.lifeline_read,),
                start_new_session=True,
            )

    def end(self) -> None:
        """End all processes and remove what they left; a forked copy of the owner leaves them alone."""
        if os.getpid() != self.owner_pid:
            return
        _lifelines.discard(self.lifeline_write)
        os.close(self.lifeline_write)
        deadline = time.monotonic() + END_S
        for process in self.running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        os.close(self.lifeline_read)
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.close(self.lock)


class LocalCluster:
    """`with LocalCluster(num_workers=2) as client:`. The workers are named worker-0, worker-1, ...

    `state_dir` keeps the journal and the weights beyond this object; without it they go with it. `devices` has one
    entry per worker.
    """

    def __init__(
        self,
        num_workers: int = 2,
        state_dir: str | Path | None = None,
        devices: Sequence[str] | None = None,
        num_threads: int | None = None,
    ) -> None:
        refuse_inside_worker()
        _check_sizes(num_workers, devices, num_threads)
        if state_dir is not None:
            checks.path("state_dir", state_dir)
        self.num_workers: Final = num_workers
        processes = _make_processes()
        self._processes = processes
        self._end = weakref.finalize(self, processes.end)
        self.state_dir: Final = Path(state_dir).resolve() if state_dir is not None else processes.scratch / "state"
        with ExitStack() as on_failure:
            on_failure.callback(self._end)
            deadline = time.monotonic() + START_S
            self.address: Final = self._start_coordinator(deadline)
            for index, device in enumerate(devices or ["cpu"] * num_workers):
                threads = ["--threads", str(num_threads)] if num_threads else []
                arguments = ["worker", "--coordinator", self.address, "--name", f"worker-{index}", "--device", device]
                processes.start(f"worker-{index}", [*arguments, "--token-file", str(self.token_file), *threads])
            self.client: Final = self._connect(deadline)
            on_failure.callback(self.client.close)
            self._await_workers(deadline)
            on_failure.pop_all()

    def __enter__(self) -> Client:
        return self.client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def token_file(self) -> Path:
        """For other programs that talk to this cluster: `pipesvc status --coordinator ADDRESS --token-file FILE`."""
        return self.state_dir / "token"

    @property
    def pids(self) -> dict[str, int]:
        """Process id of "coordinator", "worker-0", ..."""
        return {name: process.pid for name, process in self._processes.running.items()}

    def log_text(self, name: str) -> str:
        """What "coordinator" or "worker-0" has written to its terminal."""
        return self._processes.log_of(name).read_text(errors="replace")

    def close(self) -> None:
        """End all processes, at once, with whatever runs on them."""
        self.client.close()
        self._end()

    def _start_coordinator(self, deadline: float) -> str:
        """Start it on a free port; a port that another program takes in between is tried again."""
        for attempt in range(_NUM_TRIES):
            address = f"127.0.0.1:{_free_port()}"
            arguments = ["coordinator", "--listen", address, "--state-dir", str(self.state_dir)]
            self._processes.start("coordinator", arguments)
            exit_code = self._await_port(address, deadline)
            if exit_code is None:
                return address
            if exit_code != CATALOGUE[ErrorCode.PORT_TAKEN][1] or attempt == _NUM_TRIES - 1:
                break
        raise self._ended("coordinator")

    def _await_port(self, address: str, deadline: float) -> int | None:
        """None once the coordinator listens; its exit code if it ended."""
        host, _, port = address.rpartition(":")
        process = self._processes.running["coordinator"]
        while (exit_code := process.poll()) is None:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return None
            self._pause(deadline, "the coordinator to listen")
        return exit_code

    def _connect(self, deadline: float) -> Client:
        client = _LocalClient(self.address, token_file=self.token_file)
        while True:
            try:
                client.status()
            except PipesvcError as error:
                if error.code is not ErrorCode.COORDINATOR_ABSENT:
                    client.close()
                    raise
                self._check_running()
                self._pause(deadline, "the coordinator's first answer")
            else:
                return client

    def _await_workers(self, deadline: float) -> None:
        while (num_registered := len(self.client.status().workers)) < self.num_workers:
            self._check_running()
            self._pause(deadline, f"the workers to register ({num_registered} of {self.num_workers} have)")

    def _check_running(self) -> None:
        for name, process in self._processes.running.items():
            if process.poll() is not None:
                raise self._ended(name)

    def _pause(self, deadline: float, what: str) -> None:
        if time.monotonic() >= deadline:
            words = "; ".join(f"{name}: {self._last_words(name)}" for name in self._processes.running)
            raise PipesvcError(ErrorCode.TIMED_OUT, f"waited {START_S:g} s for {what}. {words}")
        time.sleep(_POLL_S)

    def _ended(self, name: str) -> PipesvcError:
        code = self._processes.running[name].poll()
        return PipesvcError(
            ErrorCode.CHILD_DIED,
            f"the {name} of the local cluster ended with code {code}: {self._last_words(name)}",
        )

    def _last_words(self, name: str) -> str:
        return " | ".join(self.log_text(name).strip().splitlines()[-_NUM_LAST_LINES:]) or "it wrote nothing"


class _LocalClient(Client):
    """A client whose runs do not outlive this process, for their coordinator does not."""

    def farewell(self, run_id: str) -> str:
        end = f"The run {run_id} ends with its LocalCluster, at the latest with this process"
        return f"{end}; until then: client.attach({run_id!r})"


def train(job: Job, num_workers: int = 2) -> list[float]:
    """Train on a local cluster to the end of the data; the loss of each step."""
    with LocalCluster(num_workers=num_workers) as client:
        return [step.loss for step in client.submit(job).steps()]


def _check_sizes(num_workers: object, devices: Any, num_threads: object) -> None:
    checks.whole("num_workers", num_workers, 1, MAX_WORKERS)
    checks.whole_or_none("num_threads", num_threads, 0, MAX_THREADS)
    if devices is not None:
        valid = f'one per worker, {num_workers} in all, as in ["cpu", "cuda:0"]'
        checks.sequence("devices", devices, valid)
        if len(devices) != num_workers:
            raise checks.refusal("devices", devices, valid)
        for device in devices:
            checks.text("a device", device, most=checks.MAX_LONG_TEXT)


def _make_processes() -> _Processes:
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        _sweep(left)
    scratch = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    read, write = os.pipe()
    _lifelines.add(write)
    return _Processes(owner_pid=os.getpid(), scratch=scratch, lock=lock, lifeline_read=read, lifeline_write=write)


def _sweep(left: Path) -> None:
    """Remove the directory of a cluster whose owner was killed; one that is in use, just made, or not ours, stays."""
    try:
        lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        found = os.fstat(lock)
        if found.st_uid == os.getuid() and time.time() - found.st_ctime > START_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _search_path() -> Iterator[str]:
    """This pipesvc first, wherever it was imported from, then what the environment says."""
    yield str(Path(__file__).resolve().parents[2])
    yield from os.environ.get("PYTHONPATH", "").split(os.pathsep)
