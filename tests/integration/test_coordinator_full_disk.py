"""A coordinator whose disk is full: it refuses what it cannot store, loses no report, and tells every end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import parse
from pipesvc.net.tokens import HOME_VARIABLE, find_token
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2, worker_pb2
from tests.integration.coordinator_harness import Client, FakeWorker, client_of, coordinator, workers
from tests.unit.coordinator.coordinator_world import make_job


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system of a few MiB")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Callable[[], None]:
    """Take all that is free; the call gives it back."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for piece_bytes in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(piece_bytes)) == piece_bytes:
                    pass
    return filler.unlink


async def speak(worker: FakeWorker, line: str) -> None:
    lines = worker_pb2.LogLines(run_id="r", role=types_pb2.ROLE_EXECUTOR, lines=[line])
    await worker.send(worker_pb2.AttachRequest(log_lines=lines))


async def step(worker: FakeWorker, client: Client, number: int) -> None:
    """Let the run make this step, and wait until it is committed."""
    batch = local_pb2.BatchAnnounced(step=number, shares=[1.0], rows=[8])
    await worker.report("r", types_pb2.ROLE_FEEDER, local_pb2.FromChild(batch_announced=batch))
    await committed(client, number)


async def committed(client: Client, number: int) -> None:
    async for response in client.stream("WatchRun", run_pb2.WatchRunRequest(run_id="r", from_step=number)):
        if response.HasField("step"):
            assert response.step.step == number
            return
    raise AssertionError(f"the run ended without step {number}")


async def submit(client: Client, run_id: str = "r") -> None:
    await client.call("SubmitRun", run_pb2.SubmitRunRequest(run_id=run_id, job=make_job()))


@pytest.mark.asyncio
async def test_a_run_outlives_a_disk_that_is_full_for_a_while(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(small_disk / "state") as address:
        token = find_token(parse(address))
        async with client_of(address, token) as client, workers(address, token, "a") as (worker,):
            worker.mute.add("end")
            await submit(client)
            await committed(client, 3)
            give_back = fill(small_disk)
            for _ in range(3):
                await speak(worker, "y" * 10_000)
            await step(worker, client, 4)
            run = await client.run()
            assert run.state == run_pb2.RUN_STATE_RUNNING
            said = [text for text in run.warnings if "the log cannot be written" in text]
            assert len(said) == 1
            assert "free space" in said[0]
            assert str(small_disk / "state") in said[0]
            with pytest.raises(PipesvcError) as caught:
                await submit(client, "refused")
            assert caught.value.code == ErrorCode.INTERNAL
            assert "Free space" in caught.value.details.advice
            assert str(small_disk / "state") in caught.value.details.message
            listed = await client.call("ListRuns", run_pb2.ListRunsRequest())
            assert [run.run_id for run in listed.runs] == ["r"]
            give_back()
            await speak(worker, "there is space again")
            await step(worker, client, 5)
            await submit(client, "refused")
            await client.call("CancelRun", run_pb2.CancelRunRequest(run_id="refused"))
            await client.call("CancelRun", run_pb2.CancelRunRequest(run_id="r"))
            run = await client.until(run_pb2.RUN_STATE_CANCELLED)
            assert run.has_weights
            assert any("3 lines of the log" in text for text in run.warnings)
            lines = [line.line async for line in client.stream("ReadLogs", run_pb2.ReadLogsRequest(run_id="r"))]
            assert lines[-1] == "there is space again"
            assert not any("y" in line for line in lines if line.startswith("yy"))
    errors = capfd.readouterr().err
    assert errors.count("the log cannot be written") == 1
    assert "Traceback" not in errors
    async with coordinator(small_disk / "state") as address, client_of(address, token) as client:
        run = await client.run()
        assert run.state == run_pb2.RUN_STATE_CANCELLED
        assert run.num_committed_steps == 5


@pytest.mark.asyncio
async def test_the_end_of_a_run_is_told_though_the_disk_stays_full(small_disk: Path) -> None:
    async with coordinator(small_disk / "state") as address:
        token = find_token(parse(address))
        async with client_of(address, token) as client, workers(address, token, "a") as (worker,):
            worker.mute.add("end")
            await submit(client)
            await committed(client, 3)
            fill(small_disk)
            await speak(worker, "y" * 10_000)
            await client.call("CancelRun", run_pb2.CancelRunRequest(run_id="r"))
            run = await client.until(run_pb2.RUN_STATE_CANCELLED)
            assert any("not in the journal" in text for text in run.warnings)
            status = await client.call("GetStatus", run_pb2.GetStatusRequest())
            assert [member.registration.name for member in status.workers] == ["a"]


@pytest.mark.asyncio
async def test_the_weights_of_a_run_wait_until_there_is_space(small_disk: Path) -> None:
    async with coordinator(small_disk / "state") as address:
        token = find_token(parse(address))
        async with client_of(address, token) as client, workers(address, token, "a") as (worker,):
            worker.mute.add("end")
            await submit(client)
            await committed(client, 3)
            give_back = fill(small_disk)
            end = local_pb2.FromChild(data_ended=local_pb2.DataEnded(num_steps=3))
            await worker.report("r", types_pb2.ROLE_FEEDER, end)
            run = await client.until(run_pb2.RUN_STATE_SAVING)
            while not any("wait for space on the disk" in text for text in run.warnings):
                await asyncio.sleep(0.1)
                run = await client.run()
            assert run.state == run_pb2.RUN_STATE_SAVING
            give_back()
            run = await client.until(run_pb2.RUN_STATE_COMPLETED)
            assert run.has_weights


@pytest.mark.asyncio
async def test_a_refused_run_does_not_train_and_leaves_nothing(small_disk: Path) -> None:
    async with coordinator(small_disk / "state") as address:
        token = find_token(parse(address))
        async with client_of(address, token) as client, workers(address, token, "a"):
            give_back = fill(small_disk)
            with pytest.raises(PipesvcError, match="the run is refused"):
                await submit(client)
            with pytest.raises(PipesvcError) as caught:
                await client.run()
            assert caught.value.code == ErrorCode.RUN_NOT_FOUND
            give_back()
            assert not list((small_disk / "state/runs").iterdir())
    async with coordinator(small_disk / "state") as address, client_of(address, token) as client:
        listed = await client.call("ListRuns", run_pb2.ListRunsRequest())
        assert not listed.runs
        async with workers(address, token, "a"):
            await submit(client)
            await client.until(run_pb2.RUN_STATE_COMPLETED)


@pytest.mark.asyncio
async def test_a_full_disk_at_the_start_is_named(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(PipesvcError, match=r"cannot be (used|opened)") as caught:
        async with coordinator(small_disk / "state"):
            pass
    assert str(small_disk / "state") in str(caught.value)
    assert "space" in caught.value.details.advice
