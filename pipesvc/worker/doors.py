"""How two agents of one host find that they are: one knocks at a socket that only processes of its host can reach.

Host names, addresses and machine ids say little: containers share them, and hosts that were cloned do too. A name in
the abstract namespace of Unix sockets exists within one network namespace only, is gone with its process, and whoever
connects there can be handed memory; so the hand-over is the proof. The name goes to the other agent in the first reply
on the link's gRPC stream. Whoever knocks shows the token of the run, and the kernel says whose process it is.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from pipesvc.net.servers import is_same_token
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.local_socket import SEND_BUFFER_BYTES

# For both ends of the greeting.
GREETING_S: Final = 2.0
_MAX_BYTES: Final = 4096
_BACKLOG: Final = 64
# Who is heard at one time; one knocks for each link of a run. Others go over gRPC.
MAX_GREETINGS: Final = 256
_PAUSE_S: Final = 1.0

_log = logging.getLogger("pipesvc.worker")

Admit = Callable[[Link, socket.socket], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    term: int
    token: str
    admit: Admit


class Door:
    """Of one agent. `admit` of a run takes the socket over."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self.name: Final = f"pipesvc-{secrets.token_hex(16)}"
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(_BACKLOG)
        self._runs: dict[str, _Run] = {}
        self._greetings: set[asyncio.Task[None]] = set()
        self._open()

    def open_run(self, run_id: str, *, term: int, token: str, admit: Admit) -> None:
        self._runs[run_id] = _Run(term=term, token=token, admit=admit)

    def close_run(self, run_id: str) -> None:
        self._runs.pop(run_id, None)

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for task in list(self._greetings):
            task.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)

    def _open(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Anybody on this host may connect, so what that takes is bounded."""
        loop = asyncio.get_running_loop()
        try:
            sock, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptor is left, and the one who waits would be announced again at once.
            _log.warning("nobody can come in by the door for %g s: %s", _PAUSE_S, error)
            loop.remove_reader(self._socket)
            loop.call_later(_PAUSE_S, self._open)
            return
        if len(self._greetings) >= MAX_GREETINGS or not _is_of_own_user(sock):
            sock.close()
            return
        sock.setblocking(False)
        task = loop.create_task(self._greet(sock))
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def _greet(self, sock: socket.socket) -> None:
        with sock, suppress(OSError, TimeoutError):
            async with asyncio.timeout(GREETING_S):
                data = await asyncio.get_running_loop().sock_recv(sock, _MAX_BYTES)
            refusal = self._refusal(data)
            if not refusal:
                knock = local_pb2.Knock.FromString(data)
                _widen(sock)
                self._runs[knock.run_id].admit(Link.from_message(knock.link), sock)
            # Last, for who is told that it is admitted sends tensors: if nobody took its link, the socket just ends.
            sock.send(local_pb2.Knocked(refusal=refusal, is_admitted=not refusal).SerializeToString())

    def _refusal(self, data: bytes) -> str:
        try:
            knock = local_pb2.Knock.FromString(data)
        except DecodeError:
            return "no greeting"
        run = self._runs.get(knock.run_id)
        if run is None or run.term != knock.term:
            return f"run {knock.run_id} is not open here in term {knock.term}"
        return "" if is_same_token(knock.token, run.token) else f"the token is not that of run {knock.run_id}"


def _is_of_own_user(sock: socket.socket) -> bool:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


async def knock(name: str, greeting: local_pb2.Knock) -> socket.socket:
    """A socket to the child at the other end of the link. Raises OSError or TimeoutError with the reason where there is
    none: most often that the door is on another host."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(GREETING_S):
            await loop.sock_connect(sock, f"\0{name}")
            sock.send(greeting.SerializeToString())
            answer = await loop.sock_recv(sock, _MAX_BYTES)
        knocked = local_pb2.Knocked.FromString(answer)
        if not knocked.is_admitted:
            raise ConnectionRefusedError(knocked.refusal or "the door was closed")
        _widen(sock)
        return sock
    except BaseException:
        sock.close()
        raise


def _widen(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
