"""A worker that starts together with its coordinator may look for the token a moment before it is written."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import parse
from pipesvc.rpc.v1 import worker_pb2
from pipesvc.worker.session import Dial, Outbox, Session
from tests.integration.agent_harness import FakeCoordinator


def session_of(coordinator: FakeCoordinator, tokens: list[str]) -> Session:
    """Its worker finds these tokens, one at a look, and the last from then on."""

    def find_token() -> str:
        return tokens.pop(0) if len(tokens) > 1 else tokens[0]

    host = mock.Mock()
    host.beat.return_value = worker_pb2.Beat()
    dial = Dial(address=parse(coordinator.address), find_token=find_token, wait_s=30.0)
    return Session(dial, lambda: worker_pb2.Register(name="w"), host, Outbox(mock.Mock()))


@pytest.mark.asyncio
async def test_a_token_that_comes_after_the_look_is_tried() -> None:
    async with FakeCoordinator(token="right") as coordinator:
        talking = asyncio.create_task(session_of(coordinator, ["", "right"]).run())
        attached = await coordinator.attached()
        assert attached.received[0].register.name == "w"
        talking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await talking


@pytest.mark.asyncio
async def test_a_token_that_stays_wrong_is_a_refusal() -> None:
    async with FakeCoordinator(token="right") as coordinator:
        with pytest.raises(PipesvcError) as caught:
            await asyncio.wait_for(session_of(coordinator, ["wrong"]).run(), 20)
    assert caught.value.code == ErrorCode.UNAUTHENTICATED
