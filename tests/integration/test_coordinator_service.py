"""The coordinator as a service: real gRPC on loopback, with workers and a client that are only streams and stubs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import parse
from pipesvc.net.tokens import HOME_VARIABLE, find_token
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2
from tests.integration.coordinator_harness import Client, client_of, coordinator, refusal_of_worker, workers
from tests.unit.coordinator.coordinator_world import make_job, make_registration


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


def token_of(address: str) -> str:
    return find_token(parse(address))


def submission(run_id: str = "r", seed: int = 0) -> run_pb2.SubmitRunRequest:
    return run_pb2.SubmitRunRequest(run_id=run_id, job=make_job(seed=seed))


async def watched(client: Client, run_id: str = "r", from_step: int = 1) -> tuple[list[int], list[int]]:
    """The states and the steps of a run until its end."""
    states, steps = [], []
    async for response in client.stream("WatchRun", run_pb2.WatchRunRequest(run_id=run_id, from_step=from_step)):
        if response.HasField("run"):
            states.append(response.run.state)
        else:
            steps.append(response.step.step)
    return states, steps


@pytest.mark.asyncio
async def test_a_run_from_submission_to_its_weights_log_and_trace(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "state") as address:
        token = token_of(address)
        async with client_of(address, token) as client, workers(address, token, "a", "b", num_steps=5):
            response = await client.call("SubmitRun", submission())
            assert response.run.state != run_pb2.RUN_STATE_UNSPECIFIED
            states, steps = await watched(client)
            assert states[-1] == run_pb2.RUN_STATE_COMPLETED
            assert steps == [1, 2, 3, 4, 5]
            assert await watched(client, from_step=4) == ([run_pb2.RUN_STATE_COMPLETED], [4, 5])
            repeat = await client.call("SubmitRun", submission())
            assert repeat.run.state == run_pb2.RUN_STATE_COMPLETED
            request = run_pb2.FetchWeightsRequest(run_id="r")
            pieces = [piece async for piece in client.stream("FetchWeights", request)]
            data = b"".join(piece.data for piece in pieces)
            assert pieces[0].step == 5
            assert pieces[0].total_bytes == len(data)
            assert data.endswith(b"abcabc")
            lines = [line async for line in client.stream("ReadLogs", run_pb2.ReadLogsRequest(run_id="r", follow=True))]
            assert {(line.worker, line.role, line.line) for line in lines} == {
                ("a", types_pb2.ROLE_EXECUTOR, "hello from a"),
                ("a", types_pb2.ROLE_FEEDER, "hello from a"),
                ("b", types_pb2.ROLE_EXECUTOR, "hello from b"),
            }
            traces = [part async for part in client.stream("ReadTrace", run_pb2.ReadTraceRequest(run_id="r"))]
            events = {(event.worker, event.stage, event.step) for part in traces for event in part.events}
            assert events == {(worker, stage, step) for stage, worker in enumerate("ab") for step in range(1, 6)}
            status = await client.call("GetStatus", run_pb2.GetStatusRequest())
            assert [worker.registration.name for worker in status.workers] == ["a", "b"]
            assert not status.runs


@pytest.mark.asyncio
async def test_live_weights_come_with_the_next_step_and_final_ones_with_a_cancel(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "state") as address:
        token = token_of(address)
        async with client_of(address, token) as client, workers(address, token, "a") as (worker,):
            worker.mute.add("end")
            await client.call("SubmitRun", submission())
            request = run_pb2.WatchRunRequest(run_id="r", from_step=3)
            async for response in client.stream("WatchRun", request):
                if response.HasField("step"):
                    break
            fetching = asyncio.create_task(client.first("FetchWeights", run_pb2.FetchWeightsRequest(run_id="r")))
            await worker.saw_save.wait()
            batch = local_pb2.BatchAnnounced(step=4, shares=[1.0], rows=[8])
            await worker.report("r", types_pb2.ROLE_FEEDER, local_pb2.FromChild(batch_announced=batch))
            live = await fetching
            assert live.step == 4
            assert live.data.endswith(b"abc")
            await client.call("CancelRun", run_pb2.CancelRunRequest(run_id="r"))
            run = await client.until(run_pb2.RUN_STATE_CANCELLED)
            assert run.num_committed_steps == 4
            final = await client.first("FetchWeights", run_pb2.FetchWeightsRequest(run_id="r"))
            assert final.step == 4
            files = {path.name for path in (tmp_path / "state/runs/r").iterdir()}
            assert files == {"weights.safetensors", "training.safetensors", "log", "trace"}


@pytest.mark.asyncio
async def test_a_worker_lost_while_cancelling_is_a_warning_and_those_who_wait_for_weights_hear_it(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path / "state") as address:
        token = token_of(address)
        async with client_of(address, token) as client, workers(address, token, "a", "b", num_steps=50) as (_, slow):
            slow.mute.add("work")
            await client.call("SubmitRun", submission())
            await client.until(run_pb2.RUN_STATE_RUNNING)
            located = run_pb2.LocateFeederRequest(run_id="r")
            with pytest.raises(PipesvcError, match="is not streamed"):
                await client.call("LocateFeeder", located)
            request = run_pb2.FetchWeightsRequest(run_id="r")
            fetching = asyncio.create_task(client.first("FetchWeights", request))
            await client.call("CancelRun", run_pb2.CancelRunRequest(run_id="r"))
            await slow.close()
            with pytest.raises(PipesvcError) as caught:
                await fetching
            assert caught.value.code in (ErrorCode.WORKER_LOST, ErrorCode.WEIGHTS_NOT_READY)
            run = await client.until(run_pb2.RUN_STATE_CANCELLED)
            assert "WORKER_LOST" in run.warnings[0]


@pytest.mark.asyncio
async def test_f03_a_lost_worker_ends_the_run_in_seconds_and_the_next_one_runs(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "state") as address:
        token = token_of(address)
        async with client_of(address, token) as client, workers(address, token, "a", "b") as (_, lost):
            lost.mute.add("work")
            await client.call("SubmitRun", submission())
            await client.call("SubmitRun", submission("next"))
            await client.until(run_pb2.RUN_STATE_RUNNING)
            began = time.monotonic()
            await lost.close()
            run = await client.until(run_pb2.RUN_STATE_FAILED)
            assert run.error.code == "WORKER_LOST"
            assert run.error.worker == "b"
            assert time.monotonic() - began < 10
            following = await client.until(run_pb2.RUN_STATE_COMPLETED, "next")
            assert following.stage_steps == [3]


@pytest.mark.asyncio
async def test_a_restart_fails_live_runs_and_goes_on_with_queued_ones(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    async with coordinator(state_dir) as address:
        token = token_of(address)
        async with client_of(address, token) as client, workers(address, token, "a") as (worker,):
            await client.call("SubmitRun", submission("done"))
            await client.until(run_pb2.RUN_STATE_COMPLETED, "done")
            worker.mute.add("work")
            await client.call("SubmitRun", submission("live"))
            await client.until(run_pb2.RUN_STATE_RUNNING, "live")
            await client.call("SubmitRun", submission("queued"))
            assert worker.welcome is not None
            assert worker.welcome.term == 1
    async with (
        coordinator(state_dir) as address,
        client_of(address, token) as client,
        workers(address, token, "a") as (worker,),
    ):
        assert worker.welcome is not None
        assert worker.welcome.term == 2
        live = await client.run("live")
        assert live.error.code == "COORDINATOR_RESTARTED"
        await client.until(run_pb2.RUN_STATE_COMPLETED, "queued")
        listed = await client.call("ListRuns", run_pb2.ListRunsRequest())
        assert [run.run_id for run in listed.runs] == ["done", "live", "queued"]
        assert await watched(client, "done") == ([run_pb2.RUN_STATE_COMPLETED], [1, 2, 3])
        with pytest.raises(PipesvcError) as caught:
            await client.call("SubmitRun", submission("done", seed=1))
        assert caught.value.code == ErrorCode.RUN_EXISTS


@pytest.mark.asyncio
async def test_refusals_come_by_name_and_the_service_goes_on(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "state") as address:
        token = token_of(address)
        async with client_of(address, "not-the-token-of-this-server") as stranger:
            with pytest.raises(PipesvcError) as caught:
                await stranger.call("GetStatus", run_pb2.GetStatusRequest())
            assert caught.value.code == ErrorCode.UNAUTHENTICATED
        async with client_of(address, token) as client:
            bad = submission()
            bad.job.strategy.micro_batches = 9
            for name, request, code in (
                ("SubmitRun", bad, ErrorCode.INVALID_JOB),
                ("GetRun", run_pb2.GetRunRequest(run_id="nobody"), ErrorCode.RUN_NOT_FOUND),
                ("CancelRun", run_pb2.CancelRunRequest(run_id="nobody"), ErrorCode.RUN_NOT_FOUND),
                ("LocateFeeder", run_pb2.LocateFeederRequest(run_id="../x"), ErrorCode.RUN_NOT_FOUND),
            ):
                with pytest.raises(PipesvcError) as caught:
                    await client.call(name, request)
                assert caught.value.code == code
            for name, stream_request in (
                ("WatchRun", run_pb2.WatchRunRequest(run_id="nobody")),
                ("FetchWeights", run_pb2.FetchWeightsRequest(run_id="nobody")),
                ("ReadLogs", run_pb2.ReadLogsRequest(run_id="../x")),
                ("ReadTrace", run_pb2.ReadTraceRequest(run_id="nobody")),
            ):
                with pytest.raises(PipesvcError) as caught:
                    await client.first(name, stream_request)
                assert caught.value.code == ErrorCode.RUN_NOT_FOUND
            listed = await client.call("ListRuns", run_pb2.ListRunsRequest())
            assert not listed.runs


@pytest.mark.asyncio
async def test_w04_workers_that_may_not_come_in_are_told_why(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "state") as address:
        token = token_of(address)
        old = make_registration("old")
        old.versions.wire = 0
        mismatch = await refusal_of_worker(address, token, old)
        assert mismatch is not None
        assert mismatch.code == ErrorCode.WIRE_MISMATCH
        async with workers(address, token, "a"):
            taken = await refusal_of_worker(address, token, make_registration("a", incarnation="2"))
            assert taken is not None
            assert taken.code == ErrorCode.WORKER_NAME_TAKEN
        assert await refusal_of_worker(address, token, make_registration("a", incarnation="3")) is None
