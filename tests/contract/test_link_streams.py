"""Links over real loopback sockets: order, credit, chunks, and who may open one."""

from __future__ import annotations

import asyncio

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.link_service import LinkService
from pipesvc.net.options import DATA_MESSAGE_BYTES
from pipesvc.net.outgoing import OutgoingTensor
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.frames import CHUNK_BYTES, FrameHeader, encode
from pipesvc.wire.links import Link
from tests.contract.link_harness import (
    BACKWARD,
    FORWARD,
    RUN,
    TERM,
    TOKEN,
    RecordingSink,
    deaf_to_proxies,
    noise,
    receiver,
    sending,
    until,
)


@pytest.mark.asyncio
async def test_order_and_content_are_kept() -> None:
    contents = [noise(num_bytes, seed) for seed, num_bytes in enumerate([1, 0, 70_000, 5, 300_000] * 8)]
    async with receiver() as there, sending(there.address) as here:
        for index, content in enumerate(contents):
            here.send(content, micro_batch=index)
        await here.sender.drain(20)
        assert there.sink.contents == contents
        assert there.sink.sequences == list(range(1, 41))
        assert [header.micro_batch for header in there.sink.headers] == list(range(40))
        assert here.acknowledged == list(range(40))
        assert here.sender.num_unacknowledged == 0
        assert here.failures == []
        assert set(there.sink.links) == {FORWARD}


@pytest.mark.asyncio
async def test_header_arrives_as_it_was_given() -> None:
    def ignore() -> None:
        pass

    async with receiver() as there, sending(there.address, has_checksums=False) as here:
        here.sender.send(
            OutgoingTensor(
                step=7,
                micro_batch=2,
                value=0,
                num_values=2,
                view=memoryview(bytes(24)),
                on_acknowledged=ignore,
                structure='{"a": 0}',
                element_type=types_pb2.ELEMENT_TYPE_FLOAT32,
                shape=(2, 3),
                requires_grad=True,
            )
        )
        marker = {"step": 7, "micro_batch": 2, "view": memoryview(b""), "on_acknowledged": ignore}
        here.sender.send(OutgoingTensor(value=1, num_values=2, is_no_gradient=True, **marker))  # type: ignore[arg-type]
        here.sender.send(OutgoingTensor(value=0, num_values=0, structure="null", **marker))  # type: ignore[arg-type]
        await here.sender.drain(20)
        tensor, gradient, empty = there.sink.headers
    common = {"run_id": RUN, "term": TERM, "step": 7, "micro_batch": 2}
    assert tensor == FrameHeader(
        **common,  # type: ignore[arg-type]
        num_values=2,
        sequence=1,
        total_bytes=24,
        dtype=types_pb2.ELEMENT_TYPE_FLOAT32,
        shape=(2, 3),
        requires_grad=True,
        structure='{"a": 0}',
    )
    assert gradient == FrameHeader(**common, value=1, num_values=2, sequence=2, is_no_gradient=True)  # type: ignore[arg-type]
    assert empty == FrameHeader(**common, sequence=3, structure="null")  # type: ignore[arg-type]
    assert there.sink.num_allocated == 1


@pytest.mark.asyncio
async def test_credit_of_one_parcel_is_never_exceeded() -> None:
    async with receiver(window_parcels=1, consumes=False) as there, sending(there.address) as here:
        for micro_batch in range(6):
            for value in range(2):
                here.send(b"x" * (micro_batch + value), value=value, num_values=2, micro_batch=micro_batch)
        for num_parcels in range(1, 7):
            num_rest = 12 - 2 * num_parcels
            await until(lambda: here.sender.num_unacknowledged == num_rest, f"parcel {num_parcels}")  # noqa: B023
            if num_rest:
                await until(lambda: "credit of 0>1/activation" in here.sender.awaiting, "the sender out of credit")
            assert len(there.sink.contents) == 2 * num_parcels
            there.sink.consume(FORWARD)
        assert there.sink.most_outstanding == 1
        assert here.sender.awaiting == ""


@pytest.mark.asyncio
@pytest.mark.parametrize("num_bytes", [3_900_000, 4_100_000, 20_000_000, CHUNK_BYTES, CHUNK_BYTES + 1])
async def test_w01_large_tensors_travel_in_chunks(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[int] = []

    def noted(header: FrameHeader, payload: memoryview) -> bytes:
        frame = encode(header, payload)
        frames.append(len(frame))
        return frame

    monkeypatch.setattr("pipesvc.net.link_sender.encode", noted)
    content = noise(num_bytes)
    async with receiver() as there, sending(there.address) as here:
        here.send(content)
        await here.sender.drain(20)
        assert there.sink.contents == [content]
        counts = here.sender.counts
    assert max(frames) < CHUNK_BYTES + 200 < DATA_MESSAGE_BYTES
    assert len(frames) == -(-num_bytes // CHUNK_BYTES)
    assert (counts.tensor_bytes, counts.wire_bytes, counts.num_frames) == (num_bytes, sum(frames), len(frames))


@pytest.mark.asyncio
async def test_both_directions_at_once() -> None:
    forward = [noise(2_000_000, seed) for seed in range(5)]
    backward = [noise(1_500_000, seed) for seed in range(5, 10)]
    async with (
        receiver() as first,
        receiver() as second,
        sending(second.address, FORWARD) as to_second,
        sending(first.address, BACKWARD) as to_first,
    ):
        for out, back in zip(forward, backward, strict=True):
            to_second.send(out)
            to_first.send(back)
        await asyncio.gather(to_second.sender.drain(20), to_first.sender.drain(20))
        assert second.sink.contents == forward
        assert first.sink.contents == backward


@pytest.mark.asyncio
async def test_links_of_one_worker_do_not_share_credit_or_order() -> None:
    other = Link.parse("feeder>1/label")
    async with (
        receiver(window_parcels=1, consumes=False) as there,
        sending(there.address, FORWARD) as first,
        sending(there.address, other) as second,
    ):
        for _ in range(2):
            first.send(b"first")
            second.send(b"second")
        await until(lambda: len(there.sink.contents) == 2, "one parcel of each link")
        there.sink.consume(other)
        await second.sender.drain(20)
        assert there.sink.links.count(other) == 2
        assert there.sink.links.count(FORWARD) == 1


@pytest.mark.asyncio
async def test_memory_is_free_when_the_acknowledgement_is_heard() -> None:
    content = bytearray(noise(3_000_000))
    view = memoryview(content)
    freed: list[bool] = []

    def free() -> None:
        view.release()
        content.clear()  # raises BufferError while anybody holds a view
        freed.append(True)

    async with receiver() as there, sending(there.address) as here:
        shape = (len(content),)
        here.sender.send(
            OutgoingTensor(
                step=1,
                micro_batch=0,
                value=0,
                num_values=1,
                view=memoryview(content),
                on_acknowledged=free,
                element_type=types_pb2.ELEMENT_TYPE_UINT8,
                shape=shape,
            )
        )
        await here.sender.drain(20)
        assert here.failures == []
    assert freed == [True]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("token", "term", "code", "why"),
    [
        ("another", TERM, ErrorCode.UNAUTHENTICATED, "token"),
        ("", TERM, ErrorCode.UNAUTHENTICATED, "token"),
        (TOKEN, TERM - 1, ErrorCode.STALE_TERM, "term 2 .* is over, term 3 is open"),
    ],
)
async def test_link_that_may_not_open_fails_at_once(token: str, term: int, code: ErrorCode, why: str) -> None:
    async with receiver() as there, sending(there.address, token=token, term=term) as here:
        here.send(b"x")
        await until(lambda: bool(here.failures), "the refusal")
        assert there.sink.contents == []
        await here.sender.drain(1)
    (failure,) = here.failures
    assert failure.code is code
    assert failure.details.where.run_id == RUN
    with pytest.raises(PipesvcError, match=why):
        raise failure
    assert "0>1/activation" in str(failure)
    assert str(there.address) in str(failure)
    assert here.acknowledged == []


@pytest.mark.asyncio
async def test_run_that_opens_later_is_waited_for() -> None:
    async with receiver(is_open=False) as there, sending(there.address) as here:
        here.send(b"x")
        assert here.sender.awaiting == f"a connection to {there.address}"
        there.service.open_run(RUN, term=TERM - 1, token=TOKEN, window_parcels=2, sink=there.sink)
        there.service.open_run(RUN, term=TERM, token=TOKEN, window_parcels=2, sink=there.sink)
        await here.sender.drain(20)
        assert there.sink.contents == [b"x"]


@pytest.mark.asyncio
async def test_newer_term_ends_the_links_of_the_older() -> None:
    async with receiver() as there, sending(there.address) as old, sending(there.address, term=TERM + 1) as new:
        old.send(b"old")
        await old.sender.drain(20)
        there.service.open_run(RUN, term=TERM + 1, token=TOKEN, window_parcels=2, sink=there.sink)
        new.send(b"new")
        await new.sender.drain(20)
        await until(lambda: bool(old.failures), "the older term's link to fail")
        assert [failure.code for failure in old.failures] == [ErrorCode.STALE_TERM]
        assert new.failures == []
        assert there.sink.contents == [b"old", b"new"]


def test_run_is_open_once_for_each_term() -> None:
    service = LinkService()
    sink = RecordingSink(service)
    service.open_run(RUN, term=2, token=TOKEN, window_parcels=2, sink=sink)
    for term, code in ((2, ErrorCode.RUN_EXISTS), (1, ErrorCode.STALE_TERM)):
        with pytest.raises(PipesvcError) as caught:
            service.open_run(RUN, term=term, token=TOKEN, window_parcels=2, sink=sink)
        assert caught.value.code is code
    with pytest.raises(PipesvcError, match="never opened"):
        service.consumed(RUN, FORWARD, 1)
    service.close_run(RUN)
    service.close_run(RUN)
    service.consumed(RUN, FORWARD, 1)


@pytest.mark.asyncio
async def test_fault_of_the_sink_reaches_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as there, sending(there.address) as here:

        def full(_link: Link, _header: FrameHeader) -> memoryview:
            raise MemoryError("no room")

        monkeypatch.setattr(there.sink, "allocate", full)
        here.send(b"x")
        await until(lambda: bool(here.failures), "the fault")
    assert [failure.code for failure in here.failures] == [ErrorCode.INTERNAL]
    assert "MemoryError: no room" in str(here.failures[0])


@pytest.mark.asyncio
async def test_w02_proxy_variables_are_ignored_by_links(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deaf_to_proxies().items():
        monkeypatch.setenv(name, value)
    async with receiver() as there, sending(there.address) as here:
        here.send(b"x")
        await here.sender.drain(20)
        assert there.sink.contents == [b"x"]


@pytest.mark.asyncio
async def test_no_task_is_left_after_close() -> None:
    before = asyncio.all_tasks()
    async with receiver(consumes=False) as there, sending(there.address) as here, sending(there.address, BACKWARD):
        for _ in range(3):
            here.send(bytes(3_000_000))
        await until(lambda: len(there.sink.contents) == 2, "the window to be full")
    await until(lambda: asyncio.all_tasks() == before, "gRPC's own task to end, a moment after its server")


@pytest.mark.asyncio
async def test_drain_has_a_limit_and_a_name() -> None:
    async with receiver(consumes=False, window_parcels=1) as there, sending(there.address) as here:
        here.send(b"x")
        here.send(b"y")
        await until(lambda: here.acknowledged == [0], "the first tensor")
        with pytest.raises(PipesvcError, match=f"{there.address}: 1 tensors did not arrive") as caught:
            await here.sender.drain(0.01)
    assert caught.value.code is ErrorCode.TIMED_OUT
