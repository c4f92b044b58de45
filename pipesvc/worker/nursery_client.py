"""The agent's side of its nursery: asks for children, and is told what became of each.

The nursery needs seconds until it can fork, and it may be killed like any process. So a request waits until the nursery
is there, at most `START_LIMIT_S`, and when a nursery dies, each of its children is told so and the next one is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pipesvc import lifeline
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.local_socket import AgentEnd, Packet, socket_pair

START_LIMIT_S: Final = 60.0
MAX_STARTS: Final = 3  # of nurseries that bear no child, one after the other; the next request allows as many again
END_LIMIT_S: Final = 2.0
# Kept from children: they are the agent's own.
PRIVATE_VARIABLES: Final = (
    lifeline.LIFELINE_VARIABLE,
    lifeline.FOLDER_VARIABLE,
    "PIPESVC_TOKEN",
    "PIPESVC_TOKEN_FILE",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
)
_MODULE: Final = "pipesvc.worker.nursery"


def how_it_ended(returncode: int) -> str:
    """ "was killed by SIGSEGV" or "ended with exit code 3", from a code as of subprocess: negative for a signal."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was killed by {name}"


class Awaited(Protocol):
    """Told on the event loop what became of one request: `unborn`, or `born` and then `ended` or `orphaned`."""

    def unborn(self, why: str) -> None: ...

    def born(self, pid: int, pidfd: int) -> None:
        """The process leads its own group. Whoever is told owns the pidfd."""

    def ended(self, returncode: int) -> None: ...

    def orphaned(self, why: str) -> None:
        """The kernel is killing it, since its nursery is dead; it is to be reaped here."""


@dataclass(slots=True)
class _Request:
    awaited: Awaited
    message: bytes
    descriptors: tuple[int, ...]
    limit: asyncio.TimerHandle
    is_sent: bool = False
    is_born: bool = False

    def settle(self) -> None:
        self.limit.cancel()
        descriptors, self.descriptors = self.descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)


class NurseryClient:
    """Make it on the event loop of the main thread, and close it at the end."""

    def __init__(self, say: Callable[[str], None]) -> None:
        assert threading.current_thread() is threading.main_thread(), "PR_SET_PDEATHSIG follows the starting thread"
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._process: _Process | None = None
        self._is_ready = False
        self._is_closing = False
        self._num_starts = 0

    def start(self) -> None:
        """Begin now, so that it is ready when the first child is needed."""
        if self._process is None:
            self._num_starts += 1
            self._is_ready = False
            self._process = _Process(self._on_packet, self._on_death)

    def fork(self, awaited: Awaited, environment: Mapping[str, str], descriptors: tuple[int, int, int]) -> int:
        """Ask for a child with copies of these descriptors: its socket, standard output and standard error."""
        if self._process is None:
            self._num_starts = 0
            self.start()
        number = next(self._numbers)
        message = local_pb2.ForkChild(child_number=number, environment=environment).SerializeToString()
        copies = tuple(os.dup(descriptor) for descriptor in descriptors)
        limit = self._loop.call_later(START_LIMIT_S, self._on_limit, number)
        self._requests[number] = _Request(awaited, message, copies, limit)
        if self._is_ready:
            self._send(self._requests[number])
        return number

    def cancel(self, number: int) -> bool:
        """Whether the request was taken back in time: nothing will be told of it."""
        request = self._requests.get(number)
        if request is None or request.is_sent:
            return False
        self._requests.pop(number).settle()
        return True

    async def close(self) -> None:
        """End the nursery and wait for that. Its children end with it."""
        self._is_closing = True
        if self._process is not None:
            await self._process.end()

    def _send(self, request: _Request) -> None:
        assert self._process is not None
        request.is_sent = True
        self._process.socket.send(request.message, request.descriptors)
        for descriptor in request.descriptors:
            os.close(descriptor)
        request.descriptors = ()

    def _on_packet(self, packet: Packet) -> None:
        report = local_pb2.FromNursery.FromString(packet.message)
        match report.WhichOneof("message"):
            case "ready":
                self._is_ready = True
                for waiting in [each for each in self._requests.values() if not each.is_sent]:
                    self._send(waiting)
            case "forked":
                (pidfd,) = packet.descriptors
                request = self._requests[report.forked.child_number]
                request.settle()
                request.is_born = True
                self._num_starts = 0
                request.awaited.born(report.forked.pid, pidfd)
            case "ended":
                # Of a child whose pidfd could not be had, `failed` came before.
                ended = self._requests.pop(report.ended.child_number, None)
                if ended is not None:
                    ended.awaited.ended(report.ended.returncode)
            case "failed":
                self._refuse(report.failed.child_number, f"no process could be forked: {report.failed.reason}")

    def _refuse(self, number: int, why: str) -> None:
        request = self._requests.pop(number)
        request.settle()
        request.awaited.unborn(why)

    def _on_limit(self, number: int) -> None:
        """A nursery that takes so long is ended, which fails what it was asked for; the next one may do better."""
        assert self._process is not None
        state = "does not answer" if self._is_ready else "is still importing torch"
        why = f"within {START_LIMIT_S:g} s it had no process: its nursery (process {self._process.pid}) {state}"
        if not self._requests[number].is_sent:
            self._refuse(number, why)
        self._process.kill()

    def _on_death(self, pid: int, returncode: int) -> None:
        self._process = None
        self._is_ready = False
        why = f"its nursery (process {pid}) {how_it_ended(returncode)}"
        can_start = self._num_starts < MAX_STARTS and not self._is_closing
        if not self._is_closing:
            self._say(f"{why}; {'starts another' if can_start else 'starts no other'}")
        if can_start:
            try:
                self.start()
            except OSError as error:
                can_start, why = False, f"{why}, and no other could be started: {error}"
        for number, request in list(self._requests.items()):
            if request.is_born:
                del self._requests[number]
                request.awaited.orphaned(why)
            elif request.is_sent or not can_start:
                self._refuse(number, why)


class _Process:
    """One nursery, from its start until it has been reaped."""

    def __init__(self, on_packet: Callable[[Packet], None], on_death: Callable[[int, int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        self._dead = asyncio.Event()
        agent_end, nursery_end = socket_pair()
        with nursery_end:
            try:
                self._process = _start(nursery_end.fileno())
            except OSError:
                agent_end.close()
                raise
        self.pid: Final = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self.socket: Final = AgentEnd(agent_end, on_packet=on_packet, on_gone=lambda: None)
        self._loop.add_reader(self._pidfd, self._on_exit)

    def kill(self) -> None:
        self._process.kill()

    async def end(self) -> None:
        for end in (self._process.terminate, self._process.kill):
            end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._dead.wait(), END_LIMIT_S)
                return

    def _on_exit(self) -> None:
        # Only now, not when its socket closes, have its children been given to this process.
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        returncode = self._process.wait()
        self.socket.drain()
        self.socket.close()
        self._dead.set()
        self._on_death(self.pid, returncode)


def _start(socket_fd: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in PRIVATE_VARIABLES}
    environment["PYTHONUNBUFFERED"] = "1"
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE, "--socket-fd", str(socket_fd), "--parent-pid", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(socket_fd,),
        process_group=0,
        env=environment,
    )
