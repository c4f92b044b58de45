"""Children forked by the nursery: each has descriptors, environment and threads of its own, and none is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from pipesvc.rpc.v1 import local_pb2, worker_pb2
from pipesvc.worker import nursery_client
from pipesvc.worker.children import Child, ChildExit
from pipesvc.worker.nursery_client import NurseryClient
from tests.integration.agent_harness import (
    LIMIT_S,
    RUN,
    Attached,
    FakeCoordinator,
    is_gone,
    start_child,
    until,
    worker_of,
)

WITH_GRANDCHILD = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("grandchild is", grandchild.pid, flush=True)
time.sleep(300)
"""


async def _said_by(attached: Attached, source: str, run_id: str = RUN, num_threads: int = 1) -> dict[str, Any]:
    """What a child says of itself: `source` is to fill the dictionary `said`."""
    start = start_child(f"said = {{}}\n{source}\nimport json\nprint('said:' + json.dumps(said))\n", run_id=run_id)
    start.assignment.num_threads = num_threads
    await attached.send(start_child=start)

    def is_it(request: worker_pb2.AttachRequest) -> bool:
        return request.log_lines.run_id == run_id and any(line.startswith("said:") for line in request.log_lines.lines)

    lines = (await attached.until(is_it)).log_lines.lines
    said: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("said:")).removeprefix("said:"))
    return said


async def _grandchild(attached: Attached) -> int:
    lines = (await attached.until_printed("grandchild is")).lines
    return int(next(line for line in lines if "grandchild is" in line).rsplit(maxsplit=1)[1])


@pytest.mark.asyncio
async def test_a_killed_nursery_is_named_as_the_cause_and_the_next_run_has_another(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await attached.send(start_child=start_child(WITH_GRANDCHILD))
        grandchild = await _grandchild(attached)
        killed = agent.nursery()
        killed.kill()
        failed = await attached.until_failed(10.0)
        assert failed.code == "CHILD_DIED"
        assert f"its nursery (process {killed.pid}) was killed by SIGKILL" in failed.message
        await attached.send(stop_run=worker_pb2.StopRun(run_id=RUN, grace_s=0.2))
        await attached.until_stopped()
        assert is_gone(grandchild)
        assert agent.run_dirs() == []

        said = await _said_by(attached, "import os\nsaid['parent'] = os.getppid()", run_id="run-2")

        assert said["parent"] == agent.nursery().pid != killed.pid
    assert f"its nursery (process {killed.pid}) was killed by SIGKILL; starts another" in agent.stderr


@pytest.mark.asyncio
async def test_a_killed_agent_takes_nursery_children_and_their_groups_along(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await attached.send(start_child=start_child(WITH_GRANDCHILD))
        grandchild = await _grandchild(attached)
        pids = [agent.nursery().pid, *(each.pid for each in agent.descendants())]
        assert grandchild in pids
        assert len(pids) == 3
        agent.kill()
        await until(lambda: all(map(is_gone, pids)), 10.0)


@pytest.mark.asyncio
async def test_the_nursery_is_fit_to_fork_and_reaps_orphans(tmp_path: Path) -> None:
    source = "import subprocess, time\nsubprocess.run(['sh', '-c', 'sleep 0.2 &'])\nsubprocess.run(['setsid', 'true'])"
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await _said_by(attached, source)
        nursery = agent.nursery()
        assert nursery.num_threads() == 1
        loaded = [each.path for each in nursery.memory_maps()]
        assert any("libtorch" in path for path in loaded)
        assert not any("cygrpc" in path for path in loaded)
        await attached.send(stop_run=worker_pb2.StopRun(run_id=RUN, grace_s=0.2))
        await attached.until_stopped()
        await until(lambda: nursery.children(recursive=True) == [], 10.0)


@pytest.mark.asyncio
async def test_a_child_has_no_descriptor_of_another_and_none_of_the_nursery(tmp_path: Path) -> None:
    source = """
import contextlib, os
said["fds"] = []
for number in os.listdir("/proc/self/fd"):
    with contextlib.suppress(FileNotFoundError):  # the one that was open for this list
        said["fds"].append(os.readlink(f"/proc/self/fd/{number}"))
"""
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        async with asyncio.timeout(LIMIT_S):
            await attached.send(start_child=start_child(WITH_GRANDCHILD, run_id="run-0"))
            await _grandchild(attached)
            one = await _said_by(attached, source, run_id="run-1")
            other = await _said_by(attached, source, run_id="run-2")
        nursery = {os.readlink(f"/proc/{agent.nursery().pid}/fd/{fd}") for fd in (1, 2)}
    kinds = [sorted(name.partition(":")[0] for name in said["fds"]) for said in (one, other)]
    inherited_by_all = [name for name in one["fds"] if name in other["fds"]]
    assert kinds[0].count("socket") == kinds[1].count("socket") == 1
    assert kinds[0].count("pipe") == kinds[1].count("pipe") == 2
    # What its port waits with; all of these have one name.
    assert kinds[0].count("anon_inode") == kinds[1].count("anon_inode") == 1
    assert not any(name.startswith(("socket", "pipe")) for name in inherited_by_all)
    assert "/dev/null" in nursery


@pytest.mark.asyncio
async def test_the_environment_of_a_child_is_its_own(tmp_path: Path) -> None:
    source = """
import os, random, tempfile
import numpy
names = ("LEAK", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PIPESVC_LIFELINE_FD", "PIPESVC_TOKEN")
said["variables"] = {name: os.environ.get(name) for name in names}
said["draws"] = [random.random(), numpy.random.random()]
said["folder"] = tempfile.gettempdir()
said["TMPDIR"] = os.environ["TMPDIR"]
os.environ["LEAK"] = "yes"
"""
    async with worker_of(FakeCoordinator(), tmp_path, variables={"PIPESVC_TOKEN": "s" * 32}) as (_, attached):
        one = await _said_by(attached, source, run_id="run-1", num_threads=2)
        other = await _said_by(attached, source, run_id="run-2", num_threads=0)
    expected = {"LEAK": None, "PIPESVC_LIFELINE_FD": None, "PIPESVC_TOKEN": None}
    assert one["variables"] == {**expected, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    own = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    assert other["variables"] == {**expected, **own}
    assert one["folder"] == one["TMPDIR"] != other["folder"] == other["TMPDIR"]
    assert one["draws"][0] != other["draws"][0]
    assert one["draws"][1] != other["draws"][1]


@pytest.mark.asyncio
async def test_torch_is_sound_in_a_child(tmp_path: Path) -> None:
    source = """
import threading, os, torch
said["seed"] = torch.initial_seed()
said["cuda"] = torch.cuda.is_initialized()
torch.set_num_threads(2)
ones = torch.ones(600, 600, requires_grad=True)
(ones @ ones).sum().backward()
said["gradient"] = ones.grad.unique().tolist()
said["num_threads"] = torch.get_num_threads()
said["num_tasks"] = len(os.listdir("/proc/self/task"))
torch.manual_seed(7)
said["draw"] = torch.rand(3).tolist()
layer = torch.nn.Linear(2, 1)
torch.optim.SGD(layer.parameters(), lr=0.1).step()
"""
    async with worker_of(FakeCoordinator(), tmp_path) as (_, attached):
        said = await _said_by(attached, source)
        again = await _said_by(attached, source, run_id="run-2")
    assert said["gradient"] == [1200.0]
    assert said["num_threads"] == 2
    assert said["num_tasks"] >= 2
    assert not said["cuda"]
    torch.manual_seed(7)
    assert said["draw"] == torch.rand(3).tolist()
    assert again == said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.asyncio
async def test_a_child_can_use_cuda(tmp_path: Path) -> None:
    source = "import torch\nsaid['sum'] = float(torch.ones(8, device='cuda').sum())"
    async with worker_of(FakeCoordinator(), tmp_path) as (_, attached):
        said = [await _said_by(attached, source, run_id=f"run-{index}") for index in range(2)]
    assert said == [{"sum": 8.0}, {"sum": 8.0}]


class Heard:
    """What an agent hears of a child of its own."""

    def __init__(self) -> None:
        self.exit: asyncio.Future[ChildExit] = asyncio.get_running_loop().create_future()

    def received(self, message: local_pb2.FromChild, descriptors: tuple[int, ...]) -> None:
        raise AssertionError(message)

    def printed(self, lines: list[str], *, is_stderr: bool) -> None:
        pass

    def exited(self, exit: ChildExit) -> None:
        self.exit.set_result(exit)


@contextlib.asynccontextmanager
async def _nursery() -> AsyncIterator[tuple[NurseryClient, list[str]]]:
    lines: list[str] = []
    client = NurseryClient(lines.append)
    client.start()
    try:
        yield client, lines
    finally:
        await client.close()


@pytest.mark.asyncio
async def test_a_child_ends_when_its_own_socket_closes_and_others_do_not() -> None:
    async with _nursery() as (client, _), asyncio.timeout(LIMIT_S):
        heard = [Heard(), Heard()]
        children = [Child(each, client, {}) for each in heard]
        await until(lambda: all(child.pid is not None for child in children))
        for child, each in zip(children, heard, strict=True):
            child._end.close()
            assert (await each.exit).returncode == 1
            assert [other.is_running for other in children] == [False, child is children[0]]
            assert await child.stop("test", 0.0)


@pytest.mark.asyncio
async def test_a_child_that_is_stopped_before_the_nursery_is_ready_is_never_forked() -> None:
    async with _nursery() as (client, lines):
        heard = Heard()
        child = Child(heard, client, {})
        assert await asyncio.wait_for(child.stop("test", 10.0), 1.0)
        assert heard.exit.result().returncode is None
        assert child.pid is None
    assert lines == []


@pytest.mark.asyncio
async def test_a_nursery_that_is_not_ready_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery_client, "START_LIMIT_S", 0.05)
    async with _nursery() as (client, lines):
        heard = Heard()
        Child(heard, client, {})
        exit = await asyncio.wait_for(heard.exit, LIMIT_S)
        assert exit.cause == "could not be started"
        assert "still importing torch" in exit.reason
        await until(lambda: len(lines) == 1)
    assert "was killed by SIGKILL; starts another" in lines[0]


@pytest.mark.asyncio
async def test_a_nursery_that_cannot_start_is_tried_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery_client, "_MODULE", "pipesvc.worker.no_such_module")
    async with _nursery() as (client, lines):
        for num_requests in (1, 2):
            heard = Heard()
            Child(heard, client, {})
            exit = await asyncio.wait_for(heard.exit, LIMIT_S)
            assert exit.returncode is None
            assert "ended with exit code 1" in exit.reason
            assert len(lines) == num_requests * nursery_client.MAX_STARTS
    assert [line.rpartition("; ")[2] for line in lines[:3]] == ["starts another", "starts another", "starts no other"]


@pytest.mark.asyncio
async def test_a_nursery_ends_when_it_is_closed() -> None:
    async with _nursery() as (client, _):
        heard = Heard()
        child = Child(heard, client, {})
        await until(lambda: child.pid is not None)
        assert child.pid is not None
        (nursery,) = [each for each in psutil.Process().children() if "pipesvc.worker.nursery" in each.cmdline()]
        child.kill()
        assert (await asyncio.wait_for(heard.exit, LIMIT_S)).returncode == -signal.SIGKILL
        assert await child.stop("test", 0.0)
    assert not nursery.is_running()
