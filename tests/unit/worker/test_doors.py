"""How agents of one host find each other, and who is not let in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.worker import doors
from pipesvc.worker.doors import Door, knock

LINK = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)


def greeting(**changes: Any) -> local_pb2.Knock:
    options: dict[str, Any] = {"run_id": "r", "term": 2, "link": LINK.to_message(), "token": "t" * 32}
    return local_pb2.Knock(**(options | changes))


@asynccontextmanager
async def a_door() -> AsyncIterator[tuple[Door, list[tuple[Link, socket.socket]]]]:
    door, admitted = Door(), list[tuple[Link, socket.socket]]()
    door.open_run("r", term=2, token="t" * 32, admit=lambda link, sock: admitted.append((link, sock.dup())))
    try:
        yield door, admitted
    finally:
        await door.close()
        for _, sock in admitted:
            sock.close()


@pytest.mark.asyncio
async def test_who_shows_the_token_gets_a_socket_to_the_other_end() -> None:
    async with a_door() as (door, admitted):
        with await knock(door.name, greeting()) as sock:
            while not admitted:
                await asyncio.sleep(0.01)
            [(link, other)] = admitted
            assert link == LINK
            sock.send(b"tensors")
            assert other.recv(100) == b"tensors"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token": "x" * 32}, "the token is not that of run r"),
        ({"token": ""}, "the token is not that of run r"),
        ({"run_id": "other"}, "run other is not open here in term 2"),
        ({"term": 1}, "run r is not open here in term 1"),
    ],
)
async def test_others_are_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    async with a_door() as (door, admitted):
        with pytest.raises(ConnectionRefusedError, match=said):
            await knock(door.name, greeting(**changes))
        assert admitted == []


@pytest.mark.asyncio
async def test_a_process_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_door() as (door, admitted):
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
        with pytest.raises(ConnectionError):
            await knock(door.name, greeting())
        assert admitted == []


@pytest.mark.asyncio
async def test_only_so_many_are_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MAX_GREETINGS", 2)
    loop = asyncio.get_running_loop()
    async with a_door() as (door, admitted), contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            silent.setblocking(False)
            await loop.sock_connect(silent, f"\0{door.name}")
        with pytest.raises(ConnectionError):
            await knock(door.name, greeting())
        assert admitted == []


@pytest.mark.asyncio
async def test_without_a_descriptor_the_door_waits_and_opens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_PAUSE_S", 0.2)
    whole, num_tries = socket.socket.accept, 0

    def accept(self: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return whole(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    async with a_door() as (door, admitted):
        (await knock(door.name, greeting())).close()
        assert len(admitted) == 1
    assert num_tries == 2  # it did not try again and again meanwhile


@pytest.mark.asyncio
async def test_no_door_and_one_that_is_closed_are_no_way() -> None:
    with pytest.raises(ConnectionRefusedError):
        await knock("pipesvc-nobody", greeting())
    async with a_door() as (door, _):
        door.close_run("r")
        with pytest.raises(ConnectionRefusedError, match="is not open here"):
            await knock(door.name, greeting())
        name = door.name
    with pytest.raises(ConnectionRefusedError):
        await knock(name, greeting())


@pytest.mark.asyncio
async def test_who_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "GREETING_S", 0.1)
    async with a_door() as (door, admitted):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, f"\0{door.name}")
            async with asyncio.timeout(5.0):
                assert await asyncio.get_running_loop().sock_recv(sock, 100) == b""
        assert admitted == []


@pytest.mark.asyncio
async def test_garbage_is_refused() -> None:
    async with a_door() as (door, admitted):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, f"\0{door.name}")
            sock.send(b"\xff\xff\xff")
            async with asyncio.timeout(5.0):
                answer = local_pb2.Knocked.FromString(await loop.sock_recv(sock, 4096))
            assert (answer.is_admitted, answer.refusal) == (False, "no greeting")
        assert admitted == []
