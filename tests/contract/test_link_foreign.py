"""The hand-made link ends speak to any gRPC client and server: the generated stub and servicer stand for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from pipesvc.errors import ErrorCode
from pipesvc.net import channels, options, reports, servers
from pipesvc.net.addresses import parse
from pipesvc.net.link_sender import link_metadata
from pipesvc.rpc.v1 import data_pb2, data_pb2_grpc, types_pb2
from pipesvc.wire.checksum import crc32c
from tests.contract.link_harness import FORWARD, RUN, TERM, TOKEN, Receiver, receiver, sending, until


def frame(sequence: int, payload: bytes, **fields: Any) -> data_pb2.Frame:
    defaults = {
        "run_id": RUN,
        "term": TERM,
        "step": 1,
        "num_values": 1,
        "sequence": sequence,
        "total_bytes": len(payload),
        "dtype": types_pb2.ELEMENT_TYPE_UINT8,
        "shape": [len(payload)],
        "codec": types_pb2.CODEC_NONE,
    }
    return data_pb2.Frame(payload=payload, **{**defaults, **fields})


async def exchange(there: Receiver, *frames: data_pb2.Frame) -> list[tuple[int, int]]:
    """Send frames through the generated stub after the first reply; returns all replies."""
    metadata = (*link_metadata(FORWARD, RUN, TERM), *channels.auth_metadata(TOKEN))
    async with channels.aio_channel(there.address, options.DATA_CHANNEL) as channel:
        call = data_pb2_grpc.LinkServiceStub(channel).Carry(metadata=metadata)  # type: ignore[no-untyped-call]
        replies = [await call.read()]
        for each in frames:
            await call.write(each)
        while replies[-1].acknowledged_sequence < frames[-1].sequence:
            reply = await call.read()
            assert isinstance(reply, data_pb2.LinkReply), await call.code()
            replies.append(reply)
        await call.done_writing()
        while isinstance(reply := await call.read(), data_pb2.LinkReply):
            replies.append(reply)
        assert await call.code() is grpc.StatusCode.OK
    return [(reply.acknowledged_sequence, reply.credit_parcels) for reply in replies]


async def refusal_of(there: Receiver, *frames: data_pb2.Frame) -> ErrorCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await exchange(there, *frames)
    report = reports.report_of(caught.value)
    assert report is not None
    return report.code


@pytest.mark.asyncio
async def test_generated_stub_sends_to_the_service() -> None:
    async with receiver(window_parcels=2) as there:
        half = frame(1, b"ab", total_bytes=4, shape=[4])
        rest = frame(1, b"cd", total_bytes=4, shape=[4], chunk_offset=2)
        replies = await exchange(there, half, rest, frame(2, b""))
        await until(lambda: there.sink.num_consumed.get(FORWARD) == 2, "both parcels to be consumed")
    assert replies[0] == (0, 2)
    assert replies[-1][0] == 2
    assert replies == sorted(replies)
    assert there.sink.contents == [b"abcd", b""]


@pytest.mark.asyncio
async def test_first_reply_says_where_to_go_on() -> None:
    async with receiver(window_parcels=2) as there:
        await exchange(there, frame(1, b"a"))
        await until(lambda: there.sink.num_consumed.get(FORWARD) == 1, "the parcel to be consumed")
        replies = await exchange(there, frame(1, b"a"), frame(2, b"b"))
    assert replies[0] == (1, 3)
    assert there.sink.contents == [b"a", b"b"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(2, b"gap"), ErrorCode.BAD_FRAME),
        (frame(1, b"x", run_id="another"), ErrorCode.BAD_FRAME),
        (frame(1, b"x", term=TERM - 1), ErrorCode.STALE_TERM),
        (frame(1, b"x", chunk_offset=1, total_bytes=2, shape=[2]), ErrorCode.BAD_FRAME),
        (frame(1, b"x", dtype=99), ErrorCode.BAD_FRAME),
        (frame(1, b"x", total_bytes=1 << 40), ErrorCode.BAD_FRAME),
    ],
    ids=lambda value: value.value if isinstance(value, ErrorCode) else "",
)
async def test_bad_frame_is_refused_by_name_and_for_good(bad: data_pb2.Frame, code: ErrorCode) -> None:
    async with receiver() as there:
        assert await refusal_of(there, bad) is code
        assert await refusal_of(there, frame(1, b"x")) is code
        assert there.sink.contents == []


@pytest.mark.asyncio
async def test_parcel_beyond_the_credit_is_refused() -> None:
    async with receiver(window_parcels=1, consumes=False) as there:
        assert await refusal_of(there, frame(1, b"a"), frame(2, b"b")) is ErrorCode.BAD_FRAME
        assert there.sink.contents == [b"a"]


@pytest.mark.asyncio
async def test_checksums_of_others_are_checked_too() -> None:
    async with receiver() as there:
        await exchange(there, frame(1, b"abc", crc32c=crc32c(memoryview(b"abc"))), frame(2, b"", crc32c=0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await exchange(there, frame(3, b"abc", crc32c=1))
        assert there.sink.contents == [b"abc", b""]
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS
    assert reports.report_of(caught.value) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["pipesvc-run", "pipesvc-term", "pipesvc-link"])
async def test_metadata_must_name_the_link(key: str) -> None:
    metadata = tuple(item for item in link_metadata(FORWARD, RUN, TERM) if item[0] != key)
    async with receiver() as there, channels.aio_channel(there.address, options.DATA_CHANNEL) as channel:
        stub = data_pb2_grpc.LinkServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Carry(metadata=(*metadata, *channels.auth_metadata(TOKEN)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        report = reports.report_of(caught.value)
        assert report is not None
        assert report.code is (ErrorCode.RUN_NOT_FOUND if key == "pipesvc-run" else ErrorCode.BAD_FRAME)


class GeneratedReceiver(data_pb2_grpc.LinkServiceServicer):
    def __init__(self) -> None:
        self.frames: list[data_pb2.Frame] = []
        self.metadata: dict[str, str] = {}

    async def Carry(  # noqa: N802
        self, request_iterator: AsyncIterator[data_pb2.Frame], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[data_pb2.LinkReply]:
        named: Any = context.invocation_metadata()
        self.metadata = dict(named)
        yield data_pb2.LinkReply(credit_parcels=10)
        async for request in request_iterator:
            self.frames.append(request)
            yield data_pb2.LinkReply(acknowledged_sequence=request.sequence, credit_parcels=10)


@pytest.mark.asyncio
async def test_sender_is_understood_by_the_generated_servicer() -> None:
    servicer = GeneratedReceiver()
    server = servers.make_server(token=None, server_options=options.DATA_SERVER)
    data_pb2_grpc.add_LinkServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    address = servers.bind(server, parse("127.0.0.1:0")).address
    await server.start()
    async with sending(address) as here:
        here.send(b"abc", value=0, num_values=2, micro_batch=5)
        here.send(b"", value=1, num_values=2, micro_batch=5)
        await here.sender.drain(20)
    await server.stop(None)
    common = {"micro_batch": 5, "num_values": 2, "requires_grad": True}
    assert servicer.frames == [
        frame(1, b"abc", structure="[0]", crc32c=crc32c(memoryview(b"abc")), **common),
        frame(2, b"", value=1, **common),
    ]
    expected = {"pipesvc-run": RUN, "pipesvc-term": "3", "pipesvc-link": "0>1/activation"}
    assert servicer.metadata.items() >= {**expected, "authorization": f"Bearer {TOKEN}"}.items()


@pytest.mark.asyncio
async def test_sender_lives_in_a_thread_with_its_own_loop() -> None:
    async with receiver() as there:

        async def in_thread() -> list[int]:
            async with sending(there.address) as here:
                here.send(b"x")
                here.send(b"y")
                await here.sender.drain(20)
                return here.acknowledged

        assert await asyncio.to_thread(asyncio.run, in_thread()) == [0, 1]
        assert there.sink.contents == [b"x", b"y"]
