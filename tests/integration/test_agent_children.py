"""Children of a real worker: what they print, how they die, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from tests.integration.agent_harness import (
    RUN,
    AgentProcess,
    Attached,
    FakeCoordinator,
    is_gone,
    start_child,
    until,
    worker_of,
)

SLEEPING = """
import os, sys, time
print("sleeping as", os.getpid(), flush=True)
print("these are my last words", file=sys.stderr, flush=True)
time.sleep(300)
def build(): pass
"""


async def _sleeping_child(agent: AgentProcess, attached: Attached, run_id: str = RUN) -> int:
    """The process id of a child that is in user code and does not leave it."""
    await attached.send(start_child=start_child(SLEEPING, run_id=run_id))
    lines = (await attached.until_printed("sleeping as")).lines
    await attached.until_printed("my last words")
    pid = int(next(line for line in lines if "sleeping as" in line).rsplit(maxsplit=1)[1])
    assert pid in [child.pid for child in agent.descendants()]
    return pid


@pytest.mark.asyncio
async def test_what_user_code_prints_and_logs_is_forwarded(tmp_path: Path) -> None:
    source = (
        'import logging, sys\nprint("to stdout")\nprint("to stderr", file=sys.stderr)\nlogging.info("logged")\n1 / 0'
    )
    async with worker_of(FakeCoordinator(), tmp_path) as (_, attached):
        await attached.send(start_child=start_child(source))
        stdout = await attached.until_printed("to stdout")
        stderr = await attached.until_printed("to stderr")
        logged = await attached.until_printed("logged")
    assert (stdout.run_id, stdout.role, stdout.is_stderr) == (RUN, types_pb2.ROLE_INSPECTOR, False)
    assert stderr.is_stderr
    assert any("INFO" in line for line in logged.lines)


@pytest.mark.asyncio
async def test_an_exception_at_import_is_reported_with_its_traceback(tmp_path: Path) -> None:
    source = 'def inner():\n    raise ValueError("boom")\ninner()'
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await attached.send(start_child=start_child(source))
        failed = await attached.until_failed()
        await until(lambda: not agent.descendants())
    assert failed.code == "IMPORT_FAILED"
    assert failed.exception_type == "ValueError"
    assert "boom" in failed.message
    assert 'raise ValueError("boom")' in failed.traceback
    assert (failed.run_id, failed.worker, failed.host) == (RUN, "w", "h")
    assert not failed.is_echo


@pytest.mark.asyncio
async def test_a_killed_child_is_reported_with_the_signal_and_its_last_words(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        os.kill(await _sleeping_child(agent, attached), signal.SIGKILL)
        failed = await attached.until_failed(10.0)
    assert failed.code == "CHILD_DIED"
    assert "killed by SIGKILL" in failed.message
    assert "these are my last words" in failed.last_words
    assert failed.run_id == RUN


@pytest.mark.asyncio
async def test_a_segfault_shows_where_it_was(tmp_path: Path) -> None:
    source = "import ctypes\ndef crash_here():\n    ctypes.string_at(0)\ncrash_here()"
    async with worker_of(FakeCoordinator(), tmp_path) as (_, attached):
        await attached.send(start_child=start_child(source))
        failed = await attached.until_failed()
    assert "killed by SIGSEGV" in failed.message
    assert "crash_here" in failed.last_words


@pytest.mark.asyncio
async def test_an_exit_code_is_reported(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (_, attached):
        await attached.send(start_child=start_child("import os\nos._exit(7)"))
        failed = await attached.until_failed()
    assert failed.code == "CHILD_DIED"
    assert "exit code 7" in failed.message


@pytest.mark.asyncio
async def test_a_bundle_that_is_not_what_its_hash_says_is_refused(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await attached.send(start_child=start_child("x = 1", sha256="0" * 64))
        failed = await attached.until_failed()
        assert not agent.descendants()
    assert failed.code == "BUNDLE_REFUSED"


@pytest.mark.asyncio
async def test_beats_name_the_children_that_live(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await _sleeping_child(agent, attached)
        request = await attached.until(lambda each: len(each.beat.children) > 0)
    (child,) = request.beat.children
    assert (child.run_id, child.role) == (RUN, types_pb2.ROLE_INSPECTOR)


@pytest.mark.asyncio
async def test_stopping_a_run_leaves_no_process_descriptor_or_file(tmp_path: Path) -> None:
    # The child has a child of its own that ignores being asked, and leaves a file behind.
    source = (
        "import subprocess, sys, tempfile, time\n"
        "code = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); time.sleep(300)'\n"
        "subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE).stdout.readline()\n"
        "tempfile.NamedTemporaryFile(delete=False)\n"
        "print('ready to be stopped', flush=True)\n"
        "time.sleep(300)\n"
    )
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        num_descriptors = agent.num_descriptors()
        for index in range(2):
            run_id = f"run-{index}"
            await attached.send(start_child=start_child(source, run_id=run_id))
            await attached.until_printed("ready to be stopped")
            attached.received.clear()
            assert len(agent.descendants()) == 2
            assert len(agent.run_dirs()) == 1

            await attached.send(stop_run=worker_pb2.StopRun(run_id=run_id, grace_s=0.2, reason="test"))
            await attached.until_stopped(run_id)

            assert agent.descendants() == []
            assert agent.run_dirs() == []
            assert agent.num_descriptors() == num_descriptors
        assert not any(each.child_report.report.HasField("failed") for each in attached.received)


@pytest.mark.asyncio
async def test_stopping_an_unknown_run_is_answered(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (_, attached):
        await attached.send(stop_run=worker_pb2.StopRun(run_id="never heard of", grace_s=1.0))
        await attached.until_stopped("never heard of")


@pytest.mark.asyncio
async def test_a_command_for_a_run_that_is_not_here_is_ignored(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        command = local_pb2.ToChild(issue_step=local_pb2.IssueStep(step=1))
        await attached.send(to_run=worker_pb2.ToRun(run_id="x", role=types_pb2.ROLE_EXECUTOR, message=command))
        await _sleeping_child(agent, attached)


@pytest.mark.asyncio
async def test_children_die_with_their_agent(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        pid = await _sleeping_child(agent, attached)
        agent.kill()
        await until(lambda: is_gone(pid), 10.0)


@pytest.mark.asyncio
async def test_the_end_of_the_lifeline_ends_everything(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    options = {"variables": {"PIPESVC_LIFELINE_FD": str(reader)}, "pass_fds": (reader,)}
    async with worker_of(FakeCoordinator(), tmp_path, **options) as (agent, attached):
        os.close(reader)
        pid = await _sleeping_child(agent, attached)
        os.close(writer)
        assert await agent.wait(10.0) == 1
        await until(lambda: is_gone(pid), 10.0)
        assert list(tmp_path.glob("pipesvc-worker-*")) == []


@pytest.mark.asyncio
async def test_a_child_that_prints_without_end_does_not_fill_its_agent(tmp_path: Path) -> None:
    source = "while True:\n    print('x' * 1000)\n"
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        before = psutil.Process(agent.process.pid).memory_info().rss
        await attached.send(start_child=start_child(source))
        await attached.until_printed("xxx")
        since = time.time_ns()
        await attached.until(lambda each: each.beat.sent_unix_ns > since + 2_000_000_000)
        grown = psutil.Process(agent.process.pid).memory_info().rss - before
        await attached.send(stop_run=worker_pb2.StopRun(run_id=RUN, grace_s=0.0))
        await attached.until_stopped()
    assert grown < 100 << 20
