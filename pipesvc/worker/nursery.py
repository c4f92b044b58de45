"""Where children are born: `python -m pipesvc.worker.nursery --socket-fd N --parent-pid P`, one for each agent.

A child that is a Python start of its own spends 1.6 s of CPU on `import torch`, and a small job has four of them. The
agent cannot fork them itself, for it is full of gRPC's threads. So this process imports once what every child needs,
and forks a child whenever the agent asks for one. That is sound as long as it stays what it is: it has one thread, runs
no user code and no torch operation (whose thread pools a fork would break), imports no gRPC and never touches CUDA.

Nothing outlives the agent. The nursery ends when the agent's socket closes or the kernel tells of the agent's death,
and takes the process groups of its children along; should it be killed itself, the kernel kills its children.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import tempfile
from importlib import import_module
from typing import Final

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker import child
from pipesvc.worker.local_socket import ChildEnd, Packet, PeerGoneError
from pipesvc.worker.parentage import adopt_orphans, die_with_parent

PRELOADED: Final = (
    "pipesvc.worker.port",
    *sorted(module for module, _, _ in child.ROLES.values()),
    "torch._dynamo",  # imported by the first optimizer of a process: 0.8 s
)
_HANDLED: Final = (signal.SIGCHLD, signal.SIGTERM)
# NumPy's own BLAS starts its threads when it is loaded.
_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"


class Nursery:
    """Forks and reaps. Needs a process with one thread, and handles SIGCHLD and SIGTERM of it."""

    def __init__(self, end: ChildEnd) -> None:
        self._end = end
        self._numbers: dict[int, int] = {}  # of the children that are not reaped, by pid
        self._signals, self._signal_writer = os.pipe()
        for descriptor in (self._signals, self._signal_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._signal_writer, warn_on_full_buffer=False)
        for number in _HANDLED:
            signal.signal(number, lambda number, frame: None)

    def serve(self) -> socket.socket | None:
        """Returns in every child, with the child's socket, and in the nursery when the agent is gone: None."""
        poll = select.poll()
        for descriptor in (self._end.fileno(), self._signals):
            poll.register(descriptor, select.POLLIN)
        with contextlib.suppress(PeerGoneError):
            self._end.send(local_pb2.FromNursery(ready=local_pb2.NurseryReady()).SerializeToString())
            while signal.SIGTERM not in self._arrived_signals():
                self._reap()
                packet = self._end.receive(0.0)
                if packet is None:
                    poll.poll()  # as long as the agent lives
                elif (own_socket := self._fork(packet)) is not None:
                    return own_socket
        for pid in self._numbers:
            _kill_group(pid)
        return None

    def _arrived_signals(self) -> bytes:
        try:
            return os.read(self._signals, 4096)
        except BlockingIOError:
            return b""

    def _reap(self) -> None:
        """Take in every process that has ended: children, and orphans of theirs, which the kernel gives to us."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                number = self._numbers.pop(ended.si_pid, None)
                if number is not None:
                    _kill_group(ended.si_pid)  # before it is reaped: then its number may belong to anyone
                _, status = os.waitpid(ended.si_pid, 0)
                if number is not None:
                    returncode = os.waitstatus_to_exitcode(status)
                    self._tell(ended=local_pb2.ChildEnded(child_number=number, returncode=returncode))

    def _fork(self, packet: Packet) -> socket.socket | None:
        """Gives its socket in the new process, None in the nursery."""
        request = local_pb2.ForkChild.FromString(packet.message)
        nursery_pid = os.getpid()
        # A signal for the child that came before it has handlers of its own would be taken for one of ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            pid = os.fork()
        except OSError as error:
            pid = None
            self._tell(failed=local_pb2.ForkFailed(child_number=request.child_number, reason=str(error)))
        if pid == 0:
            return self._born(nursery_pid, request, packet.descriptors)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        for descriptor in packet.descriptors:
            os.close(descriptor)
        if pid is not None:
            self._announce(pid, request.child_number)
        return None

    def _announce(self, pid: int, number: int) -> None:
        self._numbers[pid] = number
        with contextlib.suppress(OSError):  # the child does the same
            os.setpgid(pid, pid)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            _kill_group(pid)
            self._tell(failed=local_pb2.ForkFailed(child_number=number, reason=str(error)))
            return
        try:
            self._tell(pidfd, forked=local_pb2.ChildForked(child_number=number, pid=pid))
        finally:
            os.close(pidfd)

    def _born(self, nursery_pid: int, request: local_pb2.ForkChild, descriptors: tuple[int, ...]) -> socket.socket:
        """Become a process that has nothing of the nursery but its modules."""
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        os.setpgid(0, 0)
        die_with_parent(nursery_pid, signal.SIGKILL)
        self._end.close()
        own_socket, *outputs = descriptors
        for output, standard in zip(outputs, (1, 2), strict=True):
            os.dup2(output, standard)
        for descriptor in (self._signals, self._signal_writer, *outputs):
            os.close(descriptor)
        os.environ.update(request.environment)
        tempfile.tempdir = None  # found anew, by this environment
        if "numpy.random" in sys.modules:  # `random` has seeded itself anew, torch is seeded by the child's work
            sys.modules["numpy.random"].seed()
        gc.enable()
        return socket.socket(fileno=own_socket)

    def _tell(self, *descriptors: int, **message: object) -> None:
        self._end.send(local_pb2.FromNursery(**message).SerializeToString(), descriptors)  # type: ignore[arg-type]


def preload() -> None:
    """Import what children need. What is missing is reported by the child that needs it."""
    said = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    gc.disable()  # garbage freed now would leave holes in pages that children then copy
    with contextlib.suppress(Exception):
        for module in PRELOADED:
            import_module(module)
    gc.freeze()  # the collector of a child does not write to what is here, so that its pages stay shared
    del os.environ[_BLAS_THREADS]
    if said is not None:
        os.environ[_BLAS_THREADS] = said


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pipesvc.worker.nursery")
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    options = parser.parse_args(argv)
    die_with_parent(options.parent_pid, signal.SIGTERM)  # not SIGKILL: it has groups to take along
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    os.set_inheritable(options.socket_fd, False)
    end = ChildEnd(socket.socket(fileno=options.socket_fd))
    preload()
    own_socket = Nursery(end).serve()
    return 0 if own_socket is None else child.main(own_socket)


if __name__ == "__main__":
    sys.exit(main())
