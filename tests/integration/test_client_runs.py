"""The client against a RunService that tells what the test wrote down: every answer, break and refusal is exact."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipesvc.client.connection import Client, connect
from pipesvc.client.watching import PipesvcWarning
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import run_pb2, types_pb2
from tests.integration.client_fake import PLAN, FakeRuns, job, run_event, serving, step_event


@pytest.fixture
def fake() -> FakeRuns:
    return FakeRuns()


@pytest.fixture
def client(fake: FakeRuns) -> Iterator[Client]:
    with serving(fake) as address, connect(address) as client:
        yield client


def test_steps_are_live_and_end_with_the_run(fake: FakeRuns, client: Client) -> None:
    fake.watches = [[run_event("RUNNING"), step_event(1), step_event(2), run_event("COMPLETED")]]
    steps = list(client.attach("r").steps())
    assert [(s.index, s.loss, s.num_rows, s.time) for s in steps] == [(1, 1.0, 4, 1.0), (2, 0.5, 4, 2.0)]


def test_a_step_is_seen_before_the_run_ends(fake: FakeRuns, client: Client) -> None:
    fake.watches = [[run_event("RUNNING"), step_event(1), "hold", run_event("COMPLETED")]]
    steps = client.attach("r").steps()
    assert next(steps).index == 1
    fake.end.set()
    assert list(steps) == []


def test_a_watcher_that_stops_early_leaves_nothing(fake: FakeRuns, client: Client) -> None:
    fake.watches = [[run_event("RUNNING"), step_event(1), "hold"]]
    for step in client.attach("r").steps():
        assert step.index == 1
        break


def test_a_broken_stream_is_taken_up_after_the_last_step(fake: FakeRuns, client: Client) -> None:
    fake.watches = [
        [run_event("RUNNING"), step_event(1), step_event(2), "break"],
        ["break"],
        [run_event("RUNNING"), step_event(2), step_event(3), run_event("COMPLETED")],
    ]
    assert [step.index for step in client.attach("r").steps()] == [1, 2, 3]
    assert [request.from_step for request in fake.watch_requests] == [1, 3, 3]


def test_steps_from_a_given_step(fake: FakeRuns, client: Client) -> None:
    fake.watches = [[step_event(5), run_event("COMPLETED")]]
    assert [step.index for step in client.attach("r").steps(from_step=5)] == [5]
    assert fake.watch_requests[0].from_step == 5


def test_f12_the_error_of_a_stage_arrives_with_place_type_and_traceback(fake: FakeRuns, client: Client) -> None:
    error = types_pb2.ErrorReport(
        code="STAGE_FAILED",
        message="ValueError: boom",
        exception_type="ValueError",
        traceback='File "user.py", line 3\nValueError: boom',
        step=3,
        stage=1,
        micro_batch=2,
        worker="gpu-box",
        host="h2",
        run_id="r",
    )
    fake.watches = [[run_event("RUNNING"), step_event(1), run_event("FAILED", error=error)]]
    steps = client.attach("r").steps()
    assert next(steps).index == 1
    with pytest.raises(PipesvcError) as caught:
        next(steps)
    details = caught.value.details
    assert (details.code, details.exception_type) == (ErrorCode.STAGE_FAILED, "ValueError")
    assert details.where == Where(run_id="r", step=3, stage=1, micro_batch=2, worker="gpu-box", host="h2")
    assert 'File "user.py", line 3' in caught.value.__notes__[0]


def test_wait_returns_when_completed_and_raises_otherwise(fake: FakeRuns, client: Client) -> None:
    fake.watches = [[run_event("RUNNING"), run_event("SAVING"), run_event("COMPLETED")]]
    client.attach("r").wait()
    fake.watches = [[run_event("RUNNING"), run_event("CANCELLED")]]
    assert list(client.attach("r").steps()) == []
    with pytest.raises(PipesvcError) as caught:
        client.attach("r").wait()
    assert caught.value.code is ErrorCode.RUN_CANCELLED
    fake.watches = [[run_event("FAILED", error=types_pb2.ErrorReport(code="WORKER_LOST", message="gone"))]]
    with pytest.raises(PipesvcError, match="WORKER_LOST: gone"):
        client.attach("r").wait()


def test_losses_of_a_live_run_are_those_committed_so_far(fake: FakeRuns, client: Client) -> None:
    fake.run.num_committed_steps = 2
    fake.watches = [[run_event("RUNNING"), step_event(1), step_event(2), "hold"]]
    assert client.attach("r").losses() == [1.0, 0.5]
    fake.run.num_committed_steps = 0
    assert client.attach("r").losses() == []


def test_f24_a_coordinator_that_is_gone_is_named_within_ten_seconds(fake: FakeRuns) -> None:
    fake.watches = [[run_event("RUNNING"), step_event(1), "hold", "break"]]
    with serving(fake) as address:
        client = connect(address)
        steps = client.attach("r").steps()
        assert next(steps).index == 1
    since = time.monotonic()
    with client, pytest.raises(PipesvcError) as caught:
        next(steps)
    assert caught.value.code is ErrorCode.COORDINATOR_LOST
    assert address in str(caught.value)
    assert time.monotonic() - since < 10


def test_an_absent_coordinator_is_one_clear_error() -> None:
    with pytest.raises(PipesvcError) as caught:
        connect("127.0.0.1:1")
    assert caught.value.code is ErrorCode.COORDINATOR_ABSENT
    assert "127.0.0.1:1" in str(caught.value)


def test_w02_a_dead_proxy_in_the_environment_does_not_matter(fake: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(fake) as address, connect(address) as client:
        assert client.status().term == 3


def test_an_unknown_run_is_refused(client: Client) -> None:
    with pytest.raises(PipesvcError, match="RUN_NOT_FOUND"):
        client.attach("other")


def test_a_closed_client_says_so(fake: FakeRuns) -> None:
    with serving(fake) as address:
        with connect(address) as client:
            run = client.attach("r")
        with pytest.raises(PipesvcError, match="this client is closed"):
            run.info()
        with pytest.raises(PipesvcError, match="this client is closed"):
            list(run.steps())


def test_submit_returns_with_the_plan_and_shows_warnings_once(fake: FakeRuns, client: Client) -> None:
    text = "with one micro-batch nothing overlaps"
    planned = {"plan_json": PLAN.to_json(), "warnings": [text]}
    fake.watches = [
        [
            run_event("WAITING"),
            run_event("INSPECTING"),
            run_event("WAITING", warnings=[text]),
            run_event("BUILDING", **planned),
            "hold",
        ]
    ]
    with pytest.warns(PipesvcWarning, match=text) as warned:
        run = client.submit(job())
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert run.run_id == fake.submits[0].run_id
    assert run.run_id.startswith("identity-")


def test_submit_returns_behind_another_run_once_it_is_inspected(fake: FakeRuns, client: Client) -> None:
    own = run_pb2.Awaited(what="its turn", from_whom="run mine")
    other = run_pb2.Awaited(what="its turn", from_whom="run first")
    events = [run_event("QUEUED", awaited=[own]), run_event("QUEUED", awaited=[other]), "hold"]
    for event in events[:2]:
        event.run.run_id = "mine"  # type: ignore[attr-defined]
    fake.watches = [events]
    assert client.submit(job(), run_id="mine").run_id == "mine"


def test_submit_raises_the_refusal_of_the_coordinator(fake: FakeRuns, client: Client) -> None:
    fake.refusal = PipesvcError(ErrorCode.RUN_EXISTS, "another job has this id", advice="Choose another id")
    with pytest.raises(PipesvcError, match=r"RUN_EXISTS: another job has this id\. Choose another id"):
        client.submit(job(), run_id="taken")


def test_p07_submit_raises_what_the_plan_was_refused_for(fake: FakeRuns, client: Client) -> None:
    error = types_pb2.ErrorReport(code="UNKNOWN_DEVICE", message="worker w has no cuda:7, only cpu")
    fake.watches = [[run_event("INSPECTING"), run_event("FAILED", error=error)]]
    with pytest.raises(PipesvcError, match="UNKNOWN_DEVICE: worker w has no cuda:7, only cpu"):
        client.submit(job())


def test_submit_refuses_a_run_id_that_is_no_name(client: Client) -> None:
    for run_id in ("../x", 7, "", "x" * 65, "\ud800"):
        for call in (client.attach, lambda run_id: client.submit(job(), run_id)):
            with pytest.raises(PipesvcError, match="the run id is") as caught:
                call(run_id)  # type: ignore[arg-type]
            assert caught.value.code is ErrorCode.INVALID_JOB


def test_what_is_no_job_is_refused(client: Client) -> None:
    for call in (client.submit, client.plan, client.profile, lambda job: client.compare(job, "r")):
        with pytest.raises(PipesvcError, match=r"the job is 'job'; it must be a pipesvc\.Job") as caught:
            call("job")  # type: ignore[arg-type]
        assert caught.value.code is ErrorCode.INVALID_JOB


def test_weights_go_to_a_path(client: Client, tmp_path: Path) -> None:
    run = client.attach("r")
    for path in (3, None, b"w", "\0"):
        with pytest.raises(PipesvcError, match="path is") as caught:
            run.save_weights(path)  # type: ignore[arg-type]
        assert caught.value.code is ErrorCode.INVALID_JOB
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run.save_weights(tmp_path / "nowhere" / "w")
    with pytest.raises(IsADirectoryError):
        run.save_weights(tmp_path)


def test_a_client_is_of_an_address() -> None:
    for address in (3, 0, b"127.0.0.1:7700", ["127.0.0.1:7700"], ""):
        with pytest.raises(PipesvcError, match="address") as caught:
            connect(address)  # type: ignore[arg-type]
        assert caught.value.code is ErrorCode.INVALID_JOB
    with pytest.raises(PipesvcError, match="token_file is 3"):
        connect("127.0.0.1:1", token_file=3)  # type: ignore[arg-type]


def test_weights_come_as_a_state_dict_and_as_a_file(fake: FakeRuns, client: Client, tmp_path: Any) -> None:
    run = client.attach("r")
    state = run.state_dict()
    assert state.keys() == {"w", "b"}
    assert torch.equal(state["w"], torch.arange(6.0))
    path = tmp_path / "w.safetensors"
    assert run.save_weights(path) == 7
    assert torch.equal(load_file(path)["w"], torch.arange(6.0))
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_weights_that_end_early_are_not_kept(
    fake: FakeRuns, client: Client, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRuns, "total_bytes", 10**6)
    with pytest.raises(PipesvcError, match="ended the weights of run r early"):
        client.attach("r").save_weights(tmp_path / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_logs_trace_links_plan_and_runs(fake: FakeRuns, client: Client) -> None:
    fake.run.plan_json = PLAN.to_json()
    link = types_pb2.LinkId(producer=0, consumer=1, kind=types_pb2.LINK_KIND_ACTIVATION)
    counts: Any = {"tensor_bytes": 8, "wire_bytes": 9, "num_frames": 1, "coded_bytes": 2, "relative_error": 0.5}
    fake.run.links.append(run_pb2.LinkTotals(link=link, worker="w", way=types_pb2.LINK_WAY_SAME_HOST, **counts))
    run = client.attach("r")
    assert [(line.worker, line.role, line.is_stderr, line.line) for line in run.logs()] == [
        ("w", "feeder", True, "hello")
    ]
    trace = run.trace()
    assert len(trace) == 3
    assert (trace[0]["action"], trace[0]["micro_batch"], trace[0]["end_unix_ns"]) == ("F", 2, 9)
    assert run.links() == [{"link": "0>1/activation", "worker": "w", "way": "same host"} | counts]
    fake.run.stage_steps.extend([3, 2])
    fake.run.parameters["w"].parameters.add(name="0.weight", num_bytes=16)
    assert run.stage_steps() == [3, 2]
    assert run.parameters() == {"w": {"0.weight": 16}}
    assert run.plan() == PLAN
    assert [one.run_id for one in client.runs()] == ["r"]
    assert run.state == "RUNNING"
    assert run.cancel() == "CANCELLED"
    assert fake.num_cancels == 1
    assert run.has_ended


def test_a_run_without_a_plan_says_what_it_is(client: Client) -> None:
    with pytest.raises(PipesvcError, match="the run is RUNNING and has no plan yet"):
        client.attach("r").plan()


def test_the_client_works_inside_a_running_event_loop(fake: FakeRuns) -> None:
    fake.watches = [[run_event("RUNNING", plan_json=PLAN.to_json()), step_event(1), run_event("COMPLETED")]]

    async def cell() -> list[int]:
        with serving(fake) as address, connect(address) as client:
            return [step.index for step in client.submit(job()).steps()]

    assert asyncio.run(cell()) == [1]
