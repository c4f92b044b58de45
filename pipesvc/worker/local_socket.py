"""One message at a time between an agent and a child, with descriptors beside it.

A stream socket would need framing and could tear a descriptor from its message; a SEQPACKET pair keeps both
together and has no name that could be left behind. But a packet must fit the socket's send buffer, and a model's
layer list or a traceback may not. So a message above `INLINE_BYTES` travels in a memfd of its own, whose descriptor
is the packet's first.

The child's end blocks (one thread, nothing else to do); the agent's end never does: what the kernel does not take
at once waits in a queue, whose length is bounded by the credit of the links and by the number of commands of a run.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

INLINE_BYTES: Final = 64 * 1024
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
SEND_BUFFER_BYTES: Final = 4 * 1024 * 1024
_MAX_DESCRIPTORS: Final = 4  # the spilled message, and a segment or what a child is forked with
_INLINE: Final = b"\x00"
_SPILLED: Final = b"\x01"
# Plain numbers: each `|` of two flags of the socket module makes an enum, for longer than the system call takes.
_RECEIVE_FLAGS: Final = int(socket.MSG_CMSG_CLOEXEC)
_RECEIVE_NOW_FLAGS: Final = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_SEND_FLAGS: Final = int(socket.MSG_NOSIGNAL)
_CUT: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_RIGHTS_BYTES: Final = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
_READ_BURST: Final = 64  # packets taken in one turn of the event loop, so that one child does not starve the others


@dataclass(frozen=True, kw_only=True, slots=True)
class Packet:
    """One received message. Whoever takes it owns its descriptors."""

    message: bytes
    descriptors: tuple[int, ...]


class PeerGoneError(Exception):
    """The process at the other end has closed its socket or ended."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """(agent's end, child's end). The agent's is non-blocking."""
    agent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (agent_end, child_end):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    agent_end.setblocking(False)
    return agent_end, child_end


class Outgoing:
    """A message ready for the kernel. Duplicates the descriptors, so that their owner may close them at any time."""

    def __init__(self, message: bytes, descriptors: Sequence[int]) -> None:
        self._owned = [os.dup(descriptor) for descriptor in descriptors]
        if len(message) > INLINE_BYTES:
            spill = os.memfd_create("pipesvc-message", os.MFD_CLOEXEC)
            self._owned.insert(0, spill)
            _write_all(spill, message)
            self._data = _SPILLED + struct.pack("<Q", len(message))
        else:
            self._data = _INLINE + message

    def send(self, sock: socket.socket) -> None:
        """Raises BlockingIOError (try again later) or PeerGoneError."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self._owned))] if self._owned else []
        try:
            sock.sendmsg([self._data], rights, _SEND_FLAGS)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PeerGoneError(str(error)) from error
        self.close()

    def close(self) -> None:
        while self._owned:
            os.close(self._owned.pop())


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _receive(sock: socket.socket, flags: int = _RECEIVE_FLAGS) -> Packet:
    """Raises BlockingIOError (nothing there) or PeerGoneError."""
    try:
        data, ancillary, received_flags, _ = sock.recvmsg(INLINE_BYTES + 1, _RIGHTS_BYTES, flags)
    except ConnectionResetError as error:
        raise PeerGoneError(str(error)) from error
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if not data:
        raise PeerGoneError("the other end is closed")
    assert not received_flags & _CUT, "a packet was cut"
    if data[:1] == _INLINE:
        return Packet(message=data[1:], descriptors=tuple(descriptors))
    (size,) = struct.unpack("<Q", data[1:])
    assert size <= MAX_MESSAGE_BYTES, f"a message of {size} bytes"
    with os.fdopen(descriptors[0], "rb", buffering=0) as spill:
        message = os.pread(spill.fileno(), size, 0)
    return Packet(message=message, descriptors=tuple(descriptors[1:]))


def receive_now(sock: socket.socket) -> Packet:
    """What has come. Raises BlockingIOError (nothing) or PeerGoneError."""
    return _receive(sock, _RECEIVE_NOW_FLAGS)


class ChildEnd:
    """The child's end: sends block, reads wait at most as long as asked."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        outgoing = Outgoing(message, descriptors)
        try:
            outgoing.send(self._socket)
        finally:
            outgoing.close()

    def receive(self, timeout_s: float | None) -> Packet | None:
        """The next packet, or None when none came in time. A limit of None waits as long as the agent lives."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            with contextlib.suppress(BlockingIOError):
                return receive_now(self._socket)
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            poll.poll(None if left_s is None else left_s * 1000 + 1)

    def close(self) -> None:
        self._socket.close()


class AgentEnd:
    """The agent's end, on the event loop. Callbacks run on the loop; after `close` none comes any more."""

    def __init__(
        self, sock: socket.socket, *, on_packet: Callable[[Packet], None], on_gone: Callable[[], None]
    ) -> None:
        self._socket = sock
        self._on_packet = on_packet
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Outgoing] = deque()
        self._is_closed = False
        self._is_reading = False
        self.resume_reading()

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Never blocks and never fails: a message to a child that is gone is dropped, its exit is noticed elsewhere."""
        if self._is_closed:
            return
        outgoing = Outgoing(message, descriptors)
        was_empty = not self._queue
        self._queue.append(outgoing)
        if was_empty:
            self._flush()

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closed:
            self._is_reading = True
            self._loop.add_reader(self._socket, self._read)

    def drain(self) -> None:
        """Take everything that the child had sent before it ended."""
        for packet in self._packets(limit=None):
            self._on_packet(packet)

    def close(self) -> None:
        if self._is_closed:
            return
        self.pause_reading()
        self._is_closed = True
        self._loop.remove_writer(self._socket)
        while self._queue:
            self._queue.popleft().close()
        self._socket.close()

    def _packets(self, limit: int | None) -> Iterator[Packet]:
        num_taken = 0
        while not self._is_closed and (limit is None or num_taken < limit):
            try:
                packet = _receive(self._socket)
            except BlockingIOError:
                return
            except PeerGoneError:
                self.pause_reading()
                self._on_gone()
                return
            num_taken += 1
            yield packet

    def _read(self) -> None:
        for packet in self._packets(limit=_READ_BURST):
            self._on_packet(packet)
            if not self._is_reading:
                return

    def _flush(self) -> None:
        while self._queue:
            try:
                self._queue[0].send(self._socket)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._flush)
                return
            except PeerGoneError:
                while self._queue:
                    self._queue.popleft().close()
                break
            self._queue.popleft()
        self._loop.remove_writer(self._socket)
