"""Watching and ending the processes that run user code.

Each is forked by the nursery and leads a process group of its own. When it has ended, what it had said before is taken
in, and what is left of its group is killed, so that data-loader processes and other grandchildren go with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.local_socket import AgentEnd, Packet, socket_pair
from pipesvc.worker.nursery_client import NurseryClient, how_it_ended
from pipesvc.worker.output_lines import OutputLines

LAST_WORDS_LINES: Final = 40
LAST_WORDS_CHARS: Final = 16_000
TERMINATE_WAIT_S: Final = 1.0  # between SIGTERM and SIGKILL
KILLED_WAIT_S: Final = 5.0  # a killed process that takes longer hangs in a driver
_GROUP_POLL_S: Final = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildExit:
    """How a child ended. `returncode` as in subprocess: negative for a signal; None for one that never began.

    `reason` tells what happened to it from outside, if that is known.
    """

    returncode: int | None
    last_words: str
    reason: str = ""

    @property
    def cause(self) -> str:
        """ "was killed by SIGSEGV", "ended with exit code 3" or "could not be started"."""
        return "could not be started" if self.returncode is None else how_it_ended(self.returncode)


class ChildListener(Protocol):
    """Told of one child, on the event loop; `exited` comes last."""

    def received(self, message: local_pb2.FromChild, descriptors: tuple[int, ...]) -> None: ...

    def printed(self, lines: list[str], *, is_stderr: bool) -> None: ...

    def exited(self, exit: ChildExit) -> None: ...


class Child:
    """One process, from the request for it on. Make it on the event loop of the main thread."""

    def __init__(self, listener: ChildListener, nursery: NurseryClient, environment: Mapping[str, str]) -> None:
        self._listener = listener
        self._nursery = nursery
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS_LINES)
        self._loop = asyncio.get_running_loop()
        self.pid: int | None = None
        self.is_running = True
        self._is_killed = False
        self._reason = ""
        self._pidfd = -1
        self._gone = asyncio.Event()
        self._group_task: asyncio.Task[None] | None = None
        agent_end, child_end = socket_pair()
        stdout, child_stdout = os.pipe()
        stderr, child_stderr = os.pipe()
        self._end = AgentEnd(agent_end, on_packet=self._on_packet, on_gone=lambda: None)
        self._stdout = OutputLines(stdout, self._on_stdout)
        self._stderr = OutputLines(stderr, self._on_stderr)
        try:
            self._number = nursery.fork(self, environment, (child_end.fileno(), child_stdout, child_stderr))
        except OSError:
            self._close_ends()
            raise
        finally:
            child_end.close()
            os.close(child_stdout)
            os.close(child_stderr)

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
        self._is_killed = True
        if self.pid is not None:
            self._signal(signal.SIGKILL)
        elif self.is_running and self._nursery.cancel(self._number):
            self._finish(None, "it was not needed any more")

    async def stop(self, reason: str, grace_s: float) -> bool:
        """End it: asked at first, told after `grace_s`, then killed. False if even that did not end it in time."""
        if self.is_running and self.pid is not None and grace_s > 0:
            self.send(local_pb2.ToChild(stop=local_pb2.Stop(reason=reason)))
            if not await self._is_gone_within(grace_s):
                self._signal(signal.SIGTERM)
                await self._is_gone_within(TERMINATE_WAIT_S)
        self.kill()
        return await self._is_gone_within(KILLED_WAIT_S)

    def unborn(self, why: str) -> None:
        self._finish(None, why)

    def born(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        if self._is_killed:
            self._signal(signal.SIGKILL)

    def ended(self, returncode: int) -> None:
        self._finish(returncode)

    def orphaned(self, why: str) -> None:
        self._reason = why
        self._signal(signal.SIGKILL)
        self._loop.add_reader(self._pidfd, self._on_orphan_exit)

    async def _is_gone_within(self, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), limit_s)
        return self._gone.is_set()

    def _signal(self, number: signal.Signals) -> None:
        """Signal its group, unless it has ended: then its nursery has killed the group, whose id may be another's."""
        if not self.is_running or self.pid is None:
            return
        has_ended = select.poll()
        has_ended.register(self._pidfd, select.POLLIN)
        if not has_ended.poll(0):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _on_packet(self, packet: Packet) -> None:
        self._listener.received(local_pb2.FromChild.FromString(packet.message), packet.descriptors)

    def _on_stdout(self, lines: list[str]) -> None:
        self._listener.printed(lines, is_stderr=False)

    def _on_stderr(self, lines: list[str]) -> None:
        self._last_words.extend(lines)
        self._listener.printed(lines, is_stderr=True)

    def _on_orphan_exit(self) -> None:
        """The nursery is gone, so its child is ours to reap, and its id cannot be another's before that."""
        assert self.pid is not None
        self._loop.remove_reader(self._pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        returncode = -signal.SIGKILL
        with contextlib.suppress(ChildProcessError):  # another subreaper stands between
            returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._finish(returncode, self._reason)

    def _finish(self, returncode: int | None, reason: str = "") -> None:
        self.is_running = False
        self._end.drain()
        self._close_ends()
        if self.pid is None:
            self._gone.set()
        else:
            os.close(self._pidfd)
            self._group_task = self._loop.create_task(self._outlive_group(self.pid), name=f"group of child {self.pid}")
        last_words = "\n".join(self._last_words)[-LAST_WORDS_CHARS:]
        self._listener.exited(ChildExit(returncode=returncode, last_words=last_words, reason=reason))

    def _close_ends(self) -> None:
        """What was printed before is passed on."""
        self._end.close()
        self._stdout.finish()
        self._stderr.finish()

    async def _outlive_group(self, pid: int) -> None:
        """Wait for the killed grandchildren. The nursery reaps them; if it was killed, they are ours."""
        deadline = self._loop.time() + KILLED_WAIT_S
        while self._loop.time() < deadline:
            with contextlib.suppress(ChildProcessError):
                while os.waitid(os.P_PGID, pid, os.WEXITED | os.WNOHANG) is not None:
                    pass
            try:
                os.killpg(pid, 0)
            except (ProcessLookupError, PermissionError):
                break
            await asyncio.sleep(_GROUP_POLL_S)
        self._gone.set()
