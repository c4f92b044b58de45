"""LocalCluster starts real processes, from anywhere, and leaves none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import pipesvc
from pipesvc.client import local
from pipesvc.errors import ErrorCode, PipesvcError

LIMIT_S = 60.0


def _wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while left := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def test_a_cluster_registers_its_workers_and_leaves_nothing(tmp_path: Path) -> None:
    cluster = pipesvc.LocalCluster(num_workers=2, num_threads=1, state_dir=tmp_path / "state")
    with cluster as client:
        registered = {worker.registration.name: worker.registration for worker in client.status().workers}
        assert registered.keys() == {"worker-0", "worker-1"}
        assert registered["worker-0"].num_threads == 1
        assert list(registered["worker-1"].devices) == ["cpu"]
        assert client.runs() == []
        pids = list(cluster.pids.values())
        scratch = cluster._processes.scratch
        assert scratch.is_dir()
        with pipesvc.connect(cluster.address, token_file=cluster.token_file) as other:
            assert len(other.status().workers) == 2
        with pytest.raises(PipesvcError) as caught:
            pipesvc.connect(cluster.address)
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not scratch.exists()
    assert (tmp_path / "state" / "token").is_file()
    cluster.close()  # once more is harmless


def test_a_cluster_made_in_a_thread_outlives_the_thread() -> None:
    made: list[pipesvc.LocalCluster] = []
    thread = threading.Thread(target=lambda: made.append(pipesvc.LocalCluster(num_workers=1, num_threads=1)))
    thread.start()
    thread.join(LIMIT_S)
    [cluster] = made
    with cluster as client:
        assert [worker.registration.name for worker in client.status().workers] == ["worker-0"]


_OWNER = """
import os, sys, pipesvc
cluster = pipesvc.LocalCluster(num_workers=1, num_threads=1)
print(*cluster.pids.values(), cluster._processes.scratch, flush=True)
if os.fork() == 0:  # a forked child must not keep the cluster alive
    os.close(1)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_and_leave_nothing_when_their_owner_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with owner:
        assert owner.stdout is not None
        *pids, scratch = owner.stdout.readline().split()
        assert len(pids) == 2
        assert Path(scratch).is_dir()
        owner.send_signal(number)
        owner.wait(LIMIT_S)
        _wait_gone([int(pid) for pid in pids])
    assert list(tmp_path.iterdir()) == []


def test_what_a_cluster_left_whose_processes_were_all_killed_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "pipesvc-local-x"
    left.mkdir()
    (left / "worker-0.log").touch()
    local._sweep(left)
    assert left.exists()  # just made: its owner may be about to lock it
    monkeypatch.setattr(local, "START_S", -1.0)
    local._sweep(left)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_cannot_start_is_named_with_its_words() -> None:
    with pytest.raises(PipesvcError) as caught:
        pipesvc.LocalCluster(num_workers=2, devices=["cpu", "tpu"])
    assert caught.value.code is ErrorCode.CHILD_DIED
    assert "worker-1" in str(caught.value)
    assert "tpu" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_workers": 0}, "num_workers is 0"),
        ({"num_workers": 2, "devices": ["cpu"]}, "it must be one per worker, 2 in all"),
        ({"devices": "cpu"}, "it must be one per worker"),
        ({"num_threads": -1}, "num_threads is -1; it must be a whole number from 0"),
    ],
)
def test_wrong_arguments_start_nothing(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(PipesvcError, match=words) as caught:
        pipesvc.LocalCluster(**arguments)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_JOB
