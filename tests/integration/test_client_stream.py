"""A source in the client's process, against a receiver that keeps what arrives."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipesvc.client.connection import Client, connect
from pipesvc.client.job import StreamSource
from pipesvc.client.watching import PipesvcWarning
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import options, servers
from pipesvc.net.addresses import parse
from pipesvc.net.link_service import LinkService
from pipesvc.rpc.v1 import run_pb2
from pipesvc.wire.frames import FrameHeader
from pipesvc.wire.links import Link
from pipesvc.wire.tensors import from_buffer
from pipesvc.wire.tree import unflatten
from tests.integration.client_fake import PLAN, FakeRuns, job, run_event, serving

TOKEN = "token-of-the-run-for-the-links"
LIMIT_S = 20.0


class Receiver:
    """A worker's link service on a loop of its own; consumes what it is allowed to."""

    def __init__(self) -> None:
        self.parcels: list[tuple[int, Any]] = []
        self.links: set[str] = set()
        self.arrived = threading.Condition()
        self.limit = 1_000_000
        self.address = ""
        self._tensors: list[torch.Tensor] = []
        self._structure = ""
        self._loop = asyncio.new_event_loop()
        self._is_ready, self._ended = threading.Event(), asyncio.Event()
        self._service = LinkService()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._is_ready.wait(LIMIT_S)

    async def _serve(self) -> None:
        server = servers.make_server(token=None, server_options=options.DATA_SERVER)
        self._service.add_to(server)
        self.address = str(servers.bind(server, parse("127.0.0.1:0")).address)
        await server.start()
        self._service.open_run("r", term=3, token=TOKEN, window_parcels=2, sink=self)
        self._is_ready.set()
        await self._ended.wait()
        await server.stop(0)

    def allocate(self, link: Link, header: FrameHeader) -> memoryview:
        return memoryview(bytearray(header.total_bytes))

    def deliver(self, link: Link, header: FrameHeader, view: memoryview) -> None:
        if header.value == 0:
            self._tensors, self._structure = [], header.structure
        if header.num_values:
            self._tensors.append(from_buffer(view, header.dtype, header.shape))
        if header.ends_parcel:
            with self.arrived:
                self.parcels.append((header.step, unflatten(self._structure, self._tensors)))
                self.links.add(str(link))
                self.arrived.notify_all()
            if len(self.parcels) <= self.limit:
                self._loop.call_soon(self._service.consumed, "r", link, len(self.parcels))

    def wait_for(self, num_parcels: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.parcels) >= num_parcels, LIMIT_S)

    def close_run(self) -> None:
        self._loop.call_soon_threadsafe(self._service.close_run, "r")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(LIMIT_S)
        self._loop.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def fake(receiver: Receiver) -> FakeRuns:
    made = FakeRuns()
    made.is_new = True
    made.feeder = run_pb2.LocateFeederResponse(data_address=receiver.address, link_token=TOKEN, term=3)
    made.watches = [
        [run_event("BUILDING", plan_json=PLAN.to_json())],
        [run_event("RUNNING"), "hold", run_event("CANCELLED")],
    ]
    return made


@pytest.fixture
def client(fake: FakeRuns) -> Iterator[Client]:
    with serving(fake) as address, connect(address) as client:
        yield client


def _samples(num_samples: int) -> Iterator[tuple[torch.Tensor, int]]:
    for n in range(num_samples):
        yield torch.full((3,), float(n)), n


def test_batches_arrive_in_order_and_the_end_is_said(client: Client, receiver: Receiver) -> None:
    client.submit(job(StreamSource(_samples(5), batch_size=2)), run_id="r")
    receiver.wait_for(4)
    assert receiver.links == {"client>feeder/stream"}
    assert [step for step, _ in receiver.parcels] == [1, 2, 3, 4]
    assert [tree[1].tolist() for _, tree in receiver.parcels[:3]] == [[0, 1], [2, 3], [4]]
    assert receiver.parcels[0][1][0].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert receiver.parcels[3][1] == {"end": True}


def test_max_steps_reads_no_further(client: Client, receiver: Receiver) -> None:
    source = _samples(100)
    client.submit(job(StreamSource(source, batch_size=2), max_steps=2), run_id="r")
    receiver.wait_for(3)
    assert receiver.parcels[2] == (3, {"end": True})
    assert next(source)[1] == 4


def test_whole_batches_of_dicts_and_arrays_travel_as_they_are(client: Client, receiver: Receiver) -> None:
    batch = {"ids": torch.arange(4), "mask": torch.ones(4, dtype=torch.bool).numpy(), "scale": 0.5, "none": None}
    client.submit(job(StreamSource([batch], yields="batch", labels=False)), run_id="r")
    receiver.wait_for(2)
    tree = receiver.parcels[0][1]
    assert tree["ids"].tolist() == [0, 1, 2, 3]
    assert tree["mask"].dtype == torch.bool
    assert (tree["scale"], tree["none"]) == (0.5, None)


def test_a_slow_run_holds_the_source_back(client: Client, receiver: Receiver) -> None:
    num_read = 0

    def counted() -> Iterator[tuple[torch.Tensor, int]]:
        nonlocal num_read
        for sample in _samples(1000):
            num_read += 1
            yield sample

    receiver.limit = 3
    client.submit(job(StreamSource(counted(), batch_size=1)), run_id="r")
    receiver.wait_for(5)  # three consumed, two in the window
    deadline = time.monotonic() + LIMIT_S
    while num_read < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(receiver.parcels) == 5
    assert num_read == 8  # two wait to be sent, and the next one is in the reader's hand


def test_a16_an_exception_of_the_iterable_is_raised_where_it_can_be_seen(
    fake: FakeRuns, client: Client, receiver: Receiver
) -> None:
    def torn() -> Iterator[tuple[torch.Tensor, int]]:
        yield from _samples(4)
        raise KeyError("row 4 is torn")

    run = client.submit(job(StreamSource(torn(), batch_size=2)), run_id="r")
    with pytest.raises(
        PipesvcError, match="KeyError: 'row 4 is torn' while the streamed source made batch 3"
    ) as caught:
        list(run.steps())
    assert caught.value.code is ErrorCode.DATA_SOURCE_FAILED
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in torn" in caught.value.details.traceback
    assert fake.num_cancels == 1


def test_a_batch_that_cannot_travel_fails_the_run(fake: FakeRuns, client: Client) -> None:
    run = client.submit(job(StreamSource([object()], yields="batch", labels=False)), run_id="r")
    with pytest.raises(PipesvcError, match="cannot travel"):
        run.wait()
    assert fake.num_cancels == 1


def test_a_run_that_ends_before_its_source_is_no_failure(fake: FakeRuns, client: Client, receiver: Receiver) -> None:
    receiver.limit = 1
    run = client.submit(job(StreamSource(_samples(1000), batch_size=1)), run_id="r")
    receiver.wait_for(3)
    fake.run.state = run_pb2.RUN_STATE_COMPLETED
    receiver.close_run()
    fake.end.set()
    assert list(run.steps()) == []
    assert fake.num_cancels == 0


class Source:
    """As large as a data set may be."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return _samples(4)


def test_a_source_that_has_been_read_is_not_kept_by_its_client(client: Client, receiver: Receiver) -> None:
    source = Source()
    kept = weakref.ref(source)
    run = client.submit(job(StreamSource(source, batch_size=2)), run_id="r")
    del source
    receiver.wait_for(3)
    deadline = time.monotonic() + LIMIT_S
    while kept() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert kept() is None
    assert client._streams["r"] is not None
    assert run.run_id == "r"


def test_a_repeat_in_another_client_neither_streams_nor_cancels(
    fake: FakeRuns, client: Client, receiver: Receiver
) -> None:
    client.submit(job(StreamSource(_samples(1000), batch_size=1)), run_id="r")
    receiver.wait_for(1)
    source = _samples(1000)
    with connect(client.address) as other:
        with pytest.warns(PipesvcWarning, match="was there before"):
            other.submit(job(StreamSource(source, batch_size=1)), run_id="r")
        assert other.is_source_of("r") is False
    assert client.is_source_of("r") is True
    assert next(source)[1] == 0
    assert fake.num_cancels == 0


def test_a_repeat_in_the_same_client_goes_on_with_its_stream(
    fake: FakeRuns, client: Client, receiver: Receiver
) -> None:
    fake.watches.insert(0, ["break"])  # the first try does not see the plan
    receiver.limit = 1
    runs = [client.submit(job(StreamSource(_samples(3), batch_size=1)), run_id="r") for _ in range(2)]
    assert runs[0]._stream is not None
    assert runs[0]._stream is runs[1]._stream


def test_a_stream_that_finds_the_link_in_use_leaves_the_run_alone(
    fake: FakeRuns, client: Client, receiver: Receiver
) -> None:
    """Two clients that both saw no such run, and submitted at the same moment."""
    receiver.limit = 0
    client.submit(job(StreamSource(_samples(1000), batch_size=1)), run_id="r")
    receiver.wait_for(2)
    fake.watches.append(fake.watches[-1])
    with connect(client.address) as other:
        other._streams["r"] = None
        run = other.submit(job(StreamSource(_samples(1000), batch_size=1)), run_id="r")
        assert run._stream is not None
        run._stream._carrier.join(LIMIT_S)
        with pytest.raises(PipesvcError, match="another client streams") as caught:
            run._stream.raise_failure()
    assert caught.value.code is ErrorCode.RUN_EXISTS
    assert fake.num_cancels == 0
