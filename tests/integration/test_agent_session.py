"""A worker and its coordinator: registration, refusals, breaks, restarts, draining."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import parse
from pipesvc.rpc.v1 import worker_pb2
from tests.integration.agent_harness import (
    RUN,
    TERM,
    AgentProcess,
    FakeCoordinator,
    is_gone,
    start_child,
    until,
    worker_of,
)

SLEEPING = "import time\nprint('sleeping', flush=True)\ntime.sleep(300)\n"
DRAINING = "ends with the present run"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.asyncio
async def test_a_worker_registers_with_all_that_the_coordinator_needs(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        register = attached.received[0].register
        await attached.until(lambda each: each.beat.sent_unix_ns > 0)
    assert register.name == "w"
    assert register.incarnation
    assert list(register.devices) == ["cpu"]
    assert register.memory_bytes > 0
    assert register.num_cores > 0
    assert register.boot_id
    assert register.fingerprint
    assert f"; torch has a thread for each of this machine's {register.num_cores} cores, shared" in agent.stderr
    assert register.versions.wire == 1
    assert parse(register.data_address).port > 0


@pytest.mark.parametrize(
    "code", [ErrorCode.WORKER_NAME_TAKEN, ErrorCode.WIRE_MISMATCH, ErrorCode.UNAUTHENTICATED], ids=str
)
@pytest.mark.asyncio
async def test_a_refusal_ends_the_worker_with_one_line(tmp_path: Path, code: ErrorCode) -> None:
    error = PipesvcError(code, "so it is", advice="Do otherwise")
    async with FakeCoordinator(refusal=error) as coordinator:
        with AgentProcess(coordinator.address, tmp_path) as agent:
            assert await agent.wait() == error.exit_code
    *before, last = agent.stderr.splitlines()
    assert last == f"pipesvc worker w: {code}: so it is. Do otherwise"
    # A busy gRPC may lose the first refusal with its connection.
    assert all("dialling for up to" in line for line in before)


@pytest.mark.asyncio
async def test_a_worker_without_the_token_is_refused(tmp_path: Path) -> None:
    async with FakeCoordinator(token="s" * 32) as coordinator:
        with AgentProcess(coordinator.address, tmp_path) as agent:
            assert await agent.wait() == 9
            (line,) = agent.stderr.splitlines()
        with AgentProcess(coordinator.address, tmp_path, variables={"PIPESVC_TOKEN": "s" * 32}):
            await coordinator.attached()
    assert "UNAUTHENTICATED" in line
    assert "token" in line


@pytest.mark.asyncio
async def test_a_worker_gives_up_on_an_absent_coordinator(tmp_path: Path) -> None:
    with AgentProcess(f"127.0.0.1:{_free_port()}", tmp_path, wait_s=0.5) as agent:
        assert await agent.wait() == 8
    assert "COORDINATOR_ABSENT" in agent.stderr.splitlines()[-1]


@pytest.mark.asyncio
async def test_f19_a_worker_that_comes_first_waits_for_its_coordinator(tmp_path: Path) -> None:
    port = _free_port()
    coordinator = FakeCoordinator()
    with AgentProcess(f"127.0.0.1:{port}", tmp_path) as agent:
        await until(lambda: "dialling" in agent.stderr)
        await coordinator.start(port)
        async with coordinator:
            await coordinator.attached()


@pytest.mark.asyncio
async def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    with AgentProcess("127.0.0.1:1", tmp_path, device="cuda:63") as agent:
        assert await agent.wait() == 2
    (line,) = agent.stderr.splitlines()
    assert "UNKNOWN_DEVICE" in line
    assert "this host has cpu" in line


@pytest.mark.asyncio
async def test_w03_a_data_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with AgentProcess("127.0.0.1:1", tmp_path, listen=f"127.0.0.1:{other.getsockname()[1]}") as agent:
            assert await agent.wait() == 7
    line = agent.stderr.splitlines()[-1]  # gRPC's own log comes before it
    assert "PORT_TAKEN" in line


@pytest.mark.asyncio
async def test_a_short_break_ends_no_run(tmp_path: Path) -> None:
    coordinator = FakeCoordinator()
    async with worker_of(coordinator, tmp_path) as (agent, first):
        await first.send(start_child=start_child(SLEEPING))
        await first.until_printed("sleeping")
        (child,) = agent.descendants()

        first.hang_up.set()
        second = await coordinator.attached()

        assert second.received[0].register == first.received[0].register
        await second.until(lambda each: [child.run_id for child in each.beat.children] == [RUN])
        assert child.is_running()
        await second.send(stop_run=worker_pb2.StopRun(run_id=RUN, grace_s=0.0))
        await second.until_stopped()


@pytest.mark.asyncio
async def test_f24_a_coordinator_that_is_gone_ends_the_run_and_the_worker_serves_the_next(tmp_path: Path) -> None:
    coordinator = FakeCoordinator()
    async with worker_of(coordinator, tmp_path) as (agent, first):
        await first.send(start_child=start_child(SLEEPING))
        await first.until_printed("sleeping")
        (child,) = agent.descendants()
        port = parse(coordinator.address).port

        await coordinator.stop()
        await until(lambda: is_gone(child.pid), 10.0)
        await until(lambda: not agent.run_dirs())

        later = FakeCoordinator(term=TERM + 1)
        await later.start(port)
        async with later:
            second = await later.attached()
            assert second.received[0].register.incarnation == first.received[0].register.incarnation
            await second.send(start_child=start_child(SLEEPING, run_id="run-2", term=TERM + 1))
            await second.until_printed("sleeping")
            assert {each.log_lines.run_id for each in second.received if each.HasField("log_lines")} == {"run-2"}


@pytest.mark.asyncio
async def test_a_new_term_ends_the_runs_of_the_old_one_at_once(tmp_path: Path) -> None:
    coordinator = FakeCoordinator()
    async with worker_of(coordinator, tmp_path) as (agent, first):
        await first.send(start_child=start_child(SLEEPING))
        await first.until_printed("sleeping")
        (child,) = agent.descendants()
        await coordinator.stop()
        later = FakeCoordinator(term=TERM + 1)
        await later.start(parse(coordinator.address).port)
        async with later:
            await later.attached()
            await until(lambda: is_gone(child.pid), 2.0)


@pytest.mark.asyncio
async def test_an_idle_worker_ends_when_asked(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, _):
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.wait(10.0) == 0
    assert any(line.endswith("SIGTERM: ends") for line in agent.stderr.splitlines())
    assert list(tmp_path.glob("pipesvc-worker-*")) == []


@pytest.mark.asyncio
async def test_a_busy_worker_drains(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await attached.send(start_child=start_child(SLEEPING))
        await attached.until_printed("sleeping")
        (child,) = agent.descendants()
        agent.process.send_signal(signal.SIGTERM)
        await attached.until(lambda each: each.draining)
        assert child.is_running()

        await attached.send(stop_run=worker_pb2.StopRun(run_id=RUN, grace_s=0.0))

        assert await agent.wait(10.0) == 0
        await attached.until_stopped()


@pytest.mark.asyncio
async def test_a_second_signal_ends_a_busy_worker_at_once(tmp_path: Path) -> None:
    async with worker_of(FakeCoordinator(), tmp_path) as (agent, attached):
        await attached.send(start_child=start_child(SLEEPING))
        await attached.until_printed("sleeping")
        (child,) = agent.descendants()
        agent.process.send_signal(signal.SIGINT)
        await until(lambda: DRAINING in agent.stderr)
        agent.process.send_signal(signal.SIGINT)
        assert await agent.wait(10.0) == 0
        assert is_gone(child.pid)
