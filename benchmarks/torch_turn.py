"""Turns of plain PyTorch, in one process or in several of torch.distributed.pipelining.

The processes live as long as one object and wait on a pipe between turns, so that a turn costs no start: they take no
processor time while another contender is measured, only memory.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from benchmarks.rounds import Turn
from benchmarks.workloads import WORKLOADS
from tests.hosts.namespaces import Host

ROOT: Final = Path(__file__).resolve().parents[1]
# torch's schedules with one stage for each process; all others have two.
ONE_STAGE_EACH: Final = ("GPipe", "1F1B")
TWO_STAGES_EACH: Final = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
_V_SHAPED: Final = ("ZBVZeroBubble", "DualPipeV")
_TURN_S: Final = 300.0
_NUM_LAST_CHARACTERS: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchLoop:
    """What one process does. `schedule` is one of torch's names, or "" for a loop over the whole model."""

    workload: str
    schedule: str
    boundaries: tuple[int, ...]
    num_processes: int
    index: int
    store_path: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> TorchLoop:
        values: dict[str, Any] = json.loads(text)
        return TorchLoop(**(values | {"boundaries": tuple(values["boundaries"])}))


def homes(schedule: str, num_processes: int) -> list[int]:
    """The process of each stage, as torch wants them: in turn, or there and back."""
    there = list(range(num_processes))
    if schedule in ONE_STAGE_EACH:
        return there
    return there + (there[::-1] if schedule in _V_SHAPED else there)


class TorchProcesses:
    """`boundaries`: torch gets an equal cut where there are none. `hosts`: each process on one of its own."""

    def __init__(
        self,
        workload: str,
        schedule: str,
        *,
        num_processes: int,
        boundaries: tuple[int, ...] = (),
        hosts: Sequence[Host] = (),
    ) -> None:
        self._what = WORKLOADS[workload]
        self._name = f"torch {schedule or 'alone'}"
        num_stages = len(homes(schedule, num_processes)) if schedule else 1
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
            self._running: list[subprocess.Popen[bytes]] = []
            stack.callback(self._kill)
            self._errors = [folder / f"err-{index}" for index in range(num_processes)]
            for index, errors in enumerate(self._errors):
                loop = TorchLoop(
                    workload=workload,
                    schedule=schedule,
                    boundaries=boundaries or self._what.equal_cut(num_stages),
                    num_processes=num_processes,
                    index=index,
                    store_path=str(folder / "store"),
                )
                self._running.append(_start(loop, errors, hosts[index] if hosts else None))
            self._lines()  # each says that it is ready
            self._stack = stack.pop_all()

    def __enter__(self) -> TorchProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def turn(self) -> Turn:
        for process in self._running:
            _pipe(process.stdin).write(b"turn\n")
            _pipe(process.stdin).flush()
        outcomes: list[dict[str, Any]] = [json.loads(line) for line in self._lines()]
        ends_ns = zip(*(outcome["step_ends_ns"] for outcome in outcomes), strict=True)
        return Turn(
            step_ends_ns=tuple(max(each) for each in ends_ns),
            losses=tuple(next(outcome["losses"] for outcome in outcomes if outcome["losses"])),
            num_warm_up_steps=self._what.num_warm_up_steps,
        )

    def _lines(self) -> list[bytes]:
        """One of each, or what the first one that has ended said last; without looking again and again."""
        waiting = {_pipe(process.stdout).fileno(): index for index, process in enumerate(self._running)}
        found: dict[int, bytes] = {}
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        deadline_s = time.monotonic() + _TURN_S
        while waiting:
            heard = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
            if not heard:
                raise TimeoutError(f"a turn of {self._name} did not end within {_TURN_S:g} s")
            for descriptor, _ in heard:
                index = waiting.pop(descriptor)
                poll.unregister(descriptor)
                line = _pipe(self._running[index].stdout).readline()
                if not line:
                    words = self._errors[index].read_text(errors="replace")[-_NUM_LAST_CHARACTERS:]
                    raise RuntimeError(f"process {index} of {self._name} has ended:\n{words}")
                found[index] = line
        return [found[index] for index in sorted(found)]

    def _kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            _pipe(process.stdin).close()
            _pipe(process.stdout).close()


def _start(loop: TorchLoop, errors: Path, host: Host | None) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "benchmarks.torch_loop", loop.to_json()]
    if host is not None:
        environment["GLOO_SOCKET_IFNAME"] = "eth0"
        command = host.command(*command)
    with errors.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env=environment,
        )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
