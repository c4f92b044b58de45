"""A worker whose stage is busy, or whose run is idle, is neither taken for dead nor hung up on."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipesvc
from pipesvc.rpc.v1 import worker_pb2
from tests.integration import agent_harness, jobs
from tests.integration.agent_harness import Attached, FakeCoordinator, start_child, worker_of
from tests.integration.terminal import open_terminal, start_service
from tests.integration.test_cases import finish, make_job

# A library call that keeps the interpreter to itself: PyDLL, unlike CDLL, does not let go of the GIL. Longer than the
# 3 s after which a silent worker counts as lost.
HOLD_S = 6
BEAT_LIMIT_S = 3.0
HOLDING = (
    f"import ctypes\nprint('holding', flush=True)\nctypes.PyDLL(None).sleep({HOLD_S})\nprint('released', flush=True)"
)
# More than three times the 4 s after which an idle stream is pinged: a server that minds would have hung up.
IDLE_S = 18.0


class Holder(nn.Module):
    """Passes its input on; in the call that is named it keeps the GIL."""

    def __init__(self, at_call: int) -> None:
        super().__init__()
        self.at_call = at_call
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        if self.num_calls == self.at_call:
            ctypes.PyDLL(None).sleep(HOLD_S)
        return x


def holder(at_call: int) -> nn.Sequential:
    width, num_classes = jobs.WIDTH, jobs.NUM_CLASSES
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), Holder(at_call), nn.Linear(width, num_classes))


def rarely(num_rows: int = 24, at_row: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    for number, sample in enumerate(jobs.samples(num_rows)):
        if number == at_row:
            time.sleep(IDLE_S)
        yield sample


class TimedAttached(Attached):
    """Notes when beats come."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.beats_s: list[float] = []

    async def add(self, request: worker_pb2.AttachRequest) -> None:
        if request.HasField("beat"):
            self.beats_s.append(time.monotonic())
        await super().add(request)


@pytest.mark.asyncio
async def test_f20_beats_come_while_a_child_holds_the_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_harness, "Attached", TimedAttached)
    async with worker_of(FakeCoordinator(), tmp_path, variables={"GRPC_VERBOSITY": "INFO"}) as (agent, attached):
        assert isinstance(attached, TimedAttached)
        await attached.send(start_child=start_child(HOLDING))
        await attached.until_printed("holding")
        began_s = time.monotonic()
        await attached.until_printed("released")
        ended_s = time.monotonic()
    times = [began_s, *(beat for beat in attached.beats_s if began_s < beat < ended_s), ended_s]
    assert ended_s - began_s > HOLD_S - 1
    assert max(after - before for before, after in pairwise(times)) < BEAT_LIMIT_S
    assert "goaway" not in agent.stderr.lower()


@pytest.mark.parametrize("same_host", [True, False], ids=["same host", "gRPC"])
def test_f20_a_stage_that_holds_the_gil_is_not_declared_dead(cluster: pipesvc.Client, same_host: bool) -> None:
    """The run goes on with the same numbers, and meanwhile no worker's last beat is old."""
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=2, same_host=same_host)
    ages, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            ages.extend(worker.last_beat_age_s for worker in cluster.status().workers)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        model = pipesvc.Call(holder, at_call=18)
        losses, weights = finish(cluster, make_job(model=model, strategy=strategy, step_timeout_s=60.0))
    finally:
        is_over.set()
        thread.join()
    assert max(ages) < BEAT_LIMIT_S
    never = make_job(model=pipesvc.Call(holder, at_call=0), strategy=strategy)
    expected, truth = finish(cluster, never)
    assert losses == expected
    assert all(torch.equal(weights[name], value) for name, value in truth.items())


def test_f21_an_idle_job_is_not_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control streams, the client's, and links of gRPC, all without data for three ping intervals of a server."""
    monkeypatch.setenv("GRPC_VERBOSITY", "INFO")  # so that gRPC says whom it has hung up on
    with open_terminal(tmp_path) as terminal:
        service = start_service(terminal, tmp_path)
        with pipesvc.connect(service) as client:
            strategy = pipesvc.Strategy(micro_batches=4, num_stages=2, same_host=False)
            run = client.submit(make_job(data=pipesvc.DataSource(rarely, batch_size=8), strategy=strategy))
            run.wait()
            assert len(run.losses()) == 3
            assert run.info().warnings == []
            assert {link["way"] for link in run.links()} == {"gRPC"}
        said = []
        for process in terminal.started:
            process.terminate()
            assert process.stdout is not None
            said.append(process.stdout.read())
    assert [text.count("registered at the coordinator") for text in said] == [0, 1, 1]
    assert all("too_many_pings" not in text for text in said)
