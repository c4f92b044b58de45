"""What a run on a worker says of itself: a client that is gone, a child that died, and where that was."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, cast

import pytest

from pipesvc.net.link_service import LinkService
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from pipesvc.wire import links
from pipesvc.wire.frames import FrameHeader
from pipesvc.wire.links import Link
from pipesvc.worker.children import ChildExit
from pipesvc.worker.nursery_client import NurseryClient
from pipesvc.worker.progress_page import ProgressPage
from pipesvc.worker.worker_run import WorkerRun

STREAM = Link.parse("client>feeder/stream")
FEEDER, EXECUTOR = types_pb2.ROLE_FEEDER, types_pb2.ROLE_EXECUTOR


class Upstream:
    def __init__(self) -> None:
        self.requests: list[worker_pb2.AttachRequest] = []

    def put(self, request: worker_pb2.AttachRequest) -> None:
        self.requests.append(request)

    @property
    def failures(self) -> list[types_pb2.ErrorReport]:
        reports = [request.child_report.report for request in self.requests]
        return [report.failed for report in reports if report.HasField("failed")]


class Service:
    """The link service, as far as a run asks it; what the run gave is in `given`."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def open_run(self, run_id: str, **given: Any) -> None:
        self.given = given

    def close_run(self, run_id: str) -> None:
        self.given = {}


class Recipient:
    def send(self, message: local_pb2.ToChild, descriptors: tuple[int, ...] = ()) -> None:
        return


class World:
    def __init__(self, folder: Path) -> None:
        self.service, self.upstream = Service(), Upstream()
        assignment = local_pb2.Assignment(run_id="r", term=1, role=FEEDER, worker="w", host="h")
        self.run = WorkerRun(
            worker_pb2.StartChild(assignment=assignment, link_token="t" * 32, window_parcels=2),
            parent_dir=folder,
            door=None,
            service=cast(LinkService, self.service),
            nursery=cast(NurseryClient, None),
            upstream=self.upstream,
        )
        self.on_lost, self.sink = self.service.given["on_lost"], self.service.given["sink"]

    def deliver(self, num_values: int) -> None:
        self.sink.deliver(STREAM, FrameHeader(step=1, num_values=num_values), memoryview(b""))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_f17_client_that_is_gone_fails_the_run_by_name(world: World) -> None:
    world.sink.add(FEEDER, Recipient(), [links.FEEDER])
    world.deliver(num_values=1)
    world.on_lost(STREAM, 3661.0)
    (failure,) = world.upstream.failures
    assert failure.code == "DATA_SOURCE_FAILED"
    assert "the client that streams the data is gone since 01:01:01 UTC" in failure.message
    assert "client>feeder/stream" in failure.message
    assert "Keep the client's process running" in failure.advice
    assert (failure.is_echo, failure.run_id, failure.worker) == (False, "r", "w")


def test_client_that_has_sent_all_its_data_may_go(world: World) -> None:
    world.sink.add(FEEDER, Recipient(), [links.FEEDER])
    world.deliver(num_values=0)
    world.on_lost(STREAM, 0.0)
    assert world.upstream.failures == []


def test_client_whose_data_was_read_to_the_last_step_may_go(world: World) -> None:
    world.run.child_said(FEEDER, local_pb2.FromChild(data_ended=local_pb2.DataEnded(num_steps=3)), ())
    world.on_lost(STREAM, 0.0)
    assert world.upstream.failures == []


def test_lost_link_of_a_worker_is_left_to_its_sender(world: World) -> None:
    world.on_lost(Link.parse("0>1/activation"), 0.0)
    assert world.upstream.failures == []


@pytest.mark.asyncio
async def test_client_of_a_run_that_stops_may_go(world: World) -> None:
    await world.run.stop("enough", 0.0)
    world.on_lost(STREAM, 0.0)
    assert world.upstream.failures == []


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (local_pb2.Progress(phase="F", step=4, stage=1, micro_batch=2), " in forward of stage 1, micro-batch 2"),
        (local_pb2.Progress(phase="U", step=4, stage=1), " in the optimizer's update of stage 1"),
        (local_pb2.Progress(phase="waiting", awaiting="batch of step 1"), " while waiting for batch of step 1"),
        (local_pb2.Progress(phase="inspecting"), " while inspecting"),
        (local_pb2.Progress(phase="saving", step=4, stage=0), " while saving stage 0"),
        (None, ""),
    ],
)
def test_place_of_a_death_reads_as_words(world: World, progress: local_pb2.Progress | None, words: str) -> None:
    if progress is not None:
        page = ProgressPage()
        page.write(progress)
        world.sink.add(EXECUTOR, Recipient(), [])
        world.run.child_said(EXECUTOR, local_pb2.FromChild(progress_page=local_pb2.ProgressPage()), (page.descriptor,))
    world.run.child_exited(EXECUTOR, ChildExit(returncode=3, last_words=""))
    assert world.upstream.failures[0].message == f"the executor ended with exit code 3{words}"


@pytest.mark.parametrize(
    ("number", "advice"), [(signal.SIGSEGV, "Native code crashed"), (signal.SIGINT, "sent this signal")]
)
def test_only_crashes_are_called_crashes(world: World, number: signal.Signals, advice: str) -> None:
    world.run.child_exited(EXECUTOR, ChildExit(returncode=-number, last_words=""))
    failure = world.upstream.failures[0]
    assert number.name in failure.message
    assert advice in failure.advice
