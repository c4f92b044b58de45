"""Starting, watching and ending the processes that run user code.

multiprocessing would fork a process full of gRPC threads, or import torch through a spawn server that nobody
watches. Here a child is an exec of its own, in its own process group, started from the main thread (the kernel ties
"die with the parent" to the thread that started it). Its end is noticed through a pidfd; what it had said before is
taken in first, then its group is killed, so that data-loader processes and other grandchildren go with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Final, Protocol

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.local_socket import AgentEnd, Packet, socket_pair
from pipesvc.worker.output_lines import OutputLines

LAST_WORDS_LINES: Final = 40
LAST_WORDS_CHARS: Final = 16_000
TERMINATE_WAIT_S: Final = 1.0  # between SIGTERM and SIGKILL
KILLED_WAIT_S: Final = 5.0  # a killed process that takes longer hangs in a driver
_GROUP_POLL_S: Final = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildExit:
    """How a child ended. `returncode` as in subprocess: negative for a signal."""

    returncode: int
    last_words: str

    @property
    def cause(self) -> str:
        """ "was killed by SIGSEGV" or "ended with exit code 3"."""
        if self.returncode >= 0:
            return f"ended with exit code {self.returncode}"
        try:
            name = signal.Signals(-self.returncode).name
        except ValueError:
            name = f"signal {-self.returncode}"
        return f"was killed by {name}"


class ChildListener(Protocol):
    """Told of one child, on the event loop; `exited` comes last."""

    def received(self, message: local_pb2.FromChild, descriptors: tuple[int, ...]) -> None: ...

    def printed(self, lines: list[str], *, is_stderr: bool) -> None: ...

    def exited(self, exit: ChildExit) -> None: ...


class Child:
    """One running process. Make it on the event loop of the main thread."""

    def __init__(self, listener: ChildListener, environment: Mapping[str, str]) -> None:
        assert threading.current_thread() is threading.main_thread(), "PR_SET_PDEATHSIG follows the starting thread"
        self._listener = listener
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS_LINES)
        self._loop = asyncio.get_running_loop()
        agent_end, child_end = socket_pair()
        with child_end:
            self._process = _start(child_end.fileno(), environment)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._end = AgentEnd(agent_end, on_packet=self._on_packet, on_gone=lambda: None)
        self._stdout = OutputLines(_detached(self._process.stdout), self._on_stdout)
        self._stderr = OutputLines(_detached(self._process.stderr), self._on_stderr)
        self._gone = asyncio.Event()
        self._group_task: asyncio.Task[None] | None = None
        self._loop.add_reader(self._pidfd, self._on_exit)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def send(self, message: local_pb2.ToChild, descriptors: tuple[int, ...] = ()) -> None:
        """Never blocks; to a child that is gone it does nothing."""
        self._end.send(message.SerializeToString(), descriptors)

    def pause(self) -> None:
        """Read nothing more from it, until what it said already has been passed on."""
        for source in (self._stdout, self._stderr):
            source.pause()
        self._end.pause_reading()

    def resume(self) -> None:
        for source in (self._stdout, self._stderr):
            source.resume()
        self._end.resume_reading()

    def kill(self) -> None:
        """End it and its group now. Its exit is noticed and reported as any other."""
        self._signal(signal.SIGKILL)

    async def stop(self, reason: str, grace_s: float) -> bool:
        """End it: asked at first, told after `grace_s`, then killed. False if even that did not end it in time."""
        if self.is_running and grace_s > 0:
            self.send(local_pb2.ToChild(stop=local_pb2.Stop(reason=reason)))
            if not await self._is_gone_within(grace_s):
                self._signal(signal.SIGTERM)
                await self._is_gone_within(TERMINATE_WAIT_S)
        self.kill()
        return await self._is_gone_within(KILLED_WAIT_S)

    async def _is_gone_within(self, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), limit_s)
        return self._gone.is_set()

    def _signal(self, number: signal.Signals) -> None:
        # The leader is not reaped before `_on_exit`, so until then its group id cannot belong to anyone else.
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _on_packet(self, packet: Packet) -> None:
        self._listener.received(local_pb2.FromChild.FromString(packet.message), packet.descriptors)

    def _on_stdout(self, lines: list[str]) -> None:
        self._listener.printed(lines, is_stderr=False)

    def _on_stderr(self, lines: list[str]) -> None:
        self._last_words.extend(lines)
        self._listener.printed(lines, is_stderr=True)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._signal(signal.SIGKILL)
        returncode = self._process.wait()
        self._end.drain()
        self._end.close()
        self._stdout.finish()
        self._stderr.finish()
        self._group_task = self._loop.create_task(self._outlive_group(), name=f"group of child {self.pid}")
        last_words = "\n".join(self._last_words)[-LAST_WORDS_CHARS:]
        self._listener.exited(ChildExit(returncode=returncode, last_words=last_words))

    async def _outlive_group(self) -> None:
        """Wait for the killed grandchildren, and reap those that the kernel has given to this process."""
        deadline = self._loop.time() + KILLED_WAIT_S
        while self._loop.time() < deadline:
            with contextlib.suppress(ChildProcessError):
                while os.waitid(os.P_PGID, self.pid, os.WEXITED | os.WNOHANG) is not None:
                    pass
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                break
            await asyncio.sleep(_GROUP_POLL_S)
        self._gone.set()


def _start(socket_fd: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    numbers = ["--socket-fd", str(socket_fd), "--parent-pid", str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-m", "pipesvc.worker.child", *numbers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(socket_fd,),
        process_group=0,
        env=dict(environment),
        bufsize=0,
    )


def _detached(pipe: IO[bytes] | None) -> int:
    """A descriptor of our own for a pipe of Popen, which is closed."""
    assert pipe is not None
    with pipe:
        return os.dup(pipe.fileno())
