"""Links whose connections break: resumed without loss or doubles, or lost by name when it takes too long."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from itertools import pairwise

import grpc.aio
import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import ending
from pipesvc.net.addresses import parse
from pipesvc.net.link_sender import LinkSender
from pipesvc.net.options import DATA_MESSAGE_BYTES
from tests.contract.link_harness import (
    BACKWARD,
    FORWARD,
    LIMIT_S,
    RUN,
    TERM,
    TOKEN,
    noise,
    receiver,
    sending,
    until,
)
from tests.proxy import Proxy


@pytest.mark.asyncio
async def test_f17_cut_in_the_middle_of_a_tensor_resumes() -> None:
    contents = [noise(20_000_000, 1), noise(3_000_000, 2)]
    async with receiver() as there, Proxy(there.address, [2_500_000, 7_000_000]) as proxy:
        async with sending(proxy.address) as here:
            for content in contents:
                here.send(content)
            await here.sender.drain(25)
            counts = here.sender.counts
        assert proxy.num_cuts == 2
        assert proxy.num_connections == 3
    assert there.sink.contents == contents
    assert there.sink.num_allocated == 2
    assert here.acknowledged == [0, 1]
    assert here.failures == []
    assert counts.tensor_bytes == 23_000_000
    assert counts.wire_bytes > 23_000_000


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(3))
async def test_f17_cuts_anywhere_lose_and_double_nothing(seed: int) -> None:
    dice = random.Random(seed)
    contents = [noise(dice.choice([0, 1, 20_000, 300_000, 1_200_000]), index) for index in range(40)]
    budgets = [dice.randrange(100, 3_000_000) for _ in range(6)]
    async with receiver() as there, Proxy(there.address, budgets) as proxy, sending(proxy.address) as here:
        for index in range(0, 40, 2):
            here.send(contents[index], value=0, num_values=2, micro_batch=index)
            here.send(contents[index + 1], value=1, num_values=2, micro_batch=index)
        await here.sender.drain(25)
        assert here.failures == []
    assert there.sink.contents == contents
    assert there.sink.sequences == list(range(1, 41))
    assert here.acknowledged == list(range(40))


@pytest.mark.asyncio
async def test_f17_tensor_whose_acknowledgement_was_lost_arrives_once() -> None:
    async with receiver() as there, Proxy(there.address) as proxy, sending(proxy.address) as here:
        here.send(b"first")
        await here.sender.drain(20)
        proxy.is_deaf = True
        here.send(b"second")
        await until(lambda: len(there.sink.contents) == 2, "the second tensor")
        assert here.acknowledged == [0]
        proxy.cut()
        proxy.is_deaf = False
        await here.sender.drain(20)
        here.send(b"third")
        await here.sender.drain(20)
    assert there.sink.contents == [b"first", b"second", b"third"]
    assert here.acknowledged == [0, 1, 2]
    assert here.sender.counts.tensor_bytes == len(b"firstsecondthird")


@pytest.mark.asyncio
async def test_credit_survives_a_break() -> None:
    async with (
        receiver(window_parcels=1, consumes=False) as there,
        Proxy(there.address) as proxy,
        sending(proxy.address) as here,
    ):
        for index in range(3):
            here.send(b"x", micro_batch=index)
        await until(lambda: here.acknowledged == [0], "the first parcel")
        await until(lambda: here.awaited == [True], "word that the second one waits for credit")
        proxy.cut()
        # Then it waits for a connection, and for credit again.
        await until(lambda: here.awaited == [True, False, True], "word of the break")
        await until(lambda: proxy.num_connections == 2, "the second connection")
        await until(lambda: "credit" in here.sender.awaiting, "the sender out of credit")
        assert len(there.sink.contents) == 1
        assert here.awaited == [True, False, True]
        there.sink.consume(FORWARD)
        await until(lambda: here.acknowledged == [0, 1], "the second parcel")
        assert there.sink.most_outstanding == 1
        there.sink.consume(FORWARD)
        await until(lambda: here.sender.num_unacknowledged == 0, "the third parcel")
        assert not here.awaited[-1]
        assert all(one != other for one, other in pairwise(here.awaited))


@pytest.mark.asyncio
async def test_link_that_stays_broken_is_lost_by_name_and_address() -> None:
    async with receiver() as there, Proxy(there.address) as proxy:
        async with sending(proxy.address, lost_after_s=0.6) as here:
            here.send(b"x")
            await here.sender.drain(20)
            proxy.refuses = True
            proxy.cut()
            here.send(b"y")
            await until(lambda: bool(here.failures), "the loss")
            assert here.sender.num_unacknowledged == 0
            here.send(b"dropped")
        assert there.sink.contents == [b"x"]
    (failure,) = here.failures
    assert failure.code is ErrorCode.LINK_LOST
    assert str(proxy.address) in str(failure)
    assert "0>1/activation" in str(failure)
    assert "did not come back within 0.6 s" in str(failure)
    assert here.acknowledged == [0]


@pytest.mark.asyncio
async def test_link_that_never_opens_is_lost_too() -> None:
    async with receiver() as there, Proxy(there.address) as proxy:
        dead = proxy.address
    async with sending(dead, lost_after_s=0.4) as here:
        await until(lambda: bool(here.failures), "the loss")
    assert here.failures[0].code is ErrorCode.LINK_LOST
    assert "could not be opened within 0.4 s" in str(here.failures[0])


@pytest.mark.asyncio
async def test_peer_that_accepts_but_never_answers_is_lost() -> None:
    async with receiver() as there, Proxy(there.address) as proxy:
        proxy.is_deaf = True
        async with sending(proxy.address, lost_after_s=0.4) as here:
            await until(lambda: bool(here.failures), "the loss")
    assert here.failures[0].code is ErrorCode.LINK_LOST


@pytest.mark.asyncio
async def test_f18_peer_that_falls_silent_while_its_kernel_takes_bytes_is_lost_by_name() -> None:
    """As behind a stopped process or a full router: TCP has no complaint, so only unanswered pings tell."""
    async with receiver() as there, Proxy(there.address) as proxy, sending(proxy.address, lost_after_s=0.5) as here:
        here.send(b"x")
        await here.sender.drain(20)
        proxy.is_deaf = True
        await until(lambda: bool(here.failures), "the loss")
    assert here.failures[0].code is ErrorCode.LINK_LOST


@pytest.mark.asyncio
async def test_receiver_that_lost_its_state_is_not_mistaken_for_the_same() -> None:
    async with receiver() as first, Proxy(first.address) as proxy, sending(proxy.address) as here:
        here.send(b"x")
        await here.sender.drain(20)
        async with receiver() as second:
            proxy.target = second.address
            proxy.cut()
            await until(lambda: bool(here.failures), "the refusal")
        assert second.sink.contents == []
    assert here.failures[0].code is ErrorCode.LINK_LOST
    assert "the receiver has lost tensors" in str(here.failures[0])


@pytest.mark.asyncio
async def test_f17_link_whose_stream_does_not_come_back_is_told() -> None:
    async with receiver(lost_after_s=0.2) as there:
        before_s = time.time()
        async with sending(there.address) as here:
            here.send(b"x")
            await here.sender.drain(20)
        await until(lambda: bool(there.sink.losses), "the notice")
        ((link, since_s),) = there.sink.losses
        assert link == FORWARD
        assert before_s <= since_s <= time.time()


@pytest.mark.asyncio
async def test_f17_link_that_comes_back_and_link_of_a_closed_run_are_not_told() -> None:
    async with receiver(lost_after_s=0.6) as there, Proxy(there.address) as proxy, sending(proxy.address) as here:
        here.send(b"x")
        await here.sender.drain(20)
        proxy.cut()
        here.send(b"y")
        await here.sender.drain(20)
        await asyncio.sleep(1.0)  # longer than the limit: nothing may come
        assert there.sink.losses == []
        async with sending(there.address, BACKWARD) as other:
            other.send(b"z")
            await other.sender.drain(20)
        there.service.close_run(RUN)
        await asyncio.sleep(1.0)
        assert there.sink.losses == []


def test_message_cap_is_a_chunk_and_its_header() -> None:
    assert DATA_MESSAGE_BYTES == (1 << 20) + (64 << 10)


class _CallThatLosesACancellation:
    """As a call of grpc.aio whose refusal comes in the turn in which its reader is cancelled."""

    async def read(self) -> bytes:
        try:
            await asyncio.sleep(LIMIT_S)
        except asyncio.CancelledError:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, nothing, nothing, "", "") from None
        raise AssertionError("nobody closed the link")

    def cancel(self) -> bool:
        return True


@pytest.mark.asyncio
async def test_link_closed_in_the_moment_of_a_refusal_ends_and_does_not_dial_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[PipesvcError] = []
    sender = LinkSender(
        link=FORWARD,
        run_id=RUN,
        term=TERM,
        address=parse("127.0.0.1:1"),
        token=TOKEN,
        on_failed=failures.append,
    )
    calls: list[_CallThatLosesACancellation] = []

    def open_call(metadata: object) -> _CallThatLosesACancellation:
        calls.append(_CallThatLosesACancellation())
        return calls[-1]

    monkeypatch.setattr(sender, "_open", open_call)
    await until(lambda: len(calls) == 1, "the link dials")
    began = asyncio.get_running_loop().time()
    await sender.close()
    # It dialled on until the link was lost, 10 s later.
    assert asyncio.get_running_loop().time() - began < 5.0
    assert failures == []


@pytest.mark.asyncio
async def test_a_task_that_does_not_end_is_left_alone_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ending, "_AGAIN_S", 0.01)
    is_over = asyncio.Event()

    async def deaf() -> None:
        while not is_over.is_set():
            with suppress(asyncio.CancelledError):
                await is_over.wait()

    task = asyncio.create_task(deaf(), name="one that hears nothing")
    await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        await ending.end([task])
    assert "'one that hears nothing' goes on" in caplog.text
    is_over.set()
    await task
