"""Runs one turn of plain PyTorch, in one process or in several of torch.distributed.pipelining, to the end.

The processes are new for each turn and gone after it, so that nothing of this contender runs while another is
measured.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.rounds import NUM_STEPS, Turn
from benchmarks.sizes import ModelSizes, Sizes

ROOT: Final = Path(__file__).resolve().parents[1]
_TURN_S: Final = 600.0
_NUM_LAST_CHARACTERS: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchLoop:
    """What one process does. `schedule` is one of torch's names, or "" for a loop over the whole model."""

    sizes: Sizes
    schedule: str
    keeps_outputs: bool
    num_steps: int
    num_processes: int
    index: int
    store_path: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> TorchLoop:
        values: dict[str, Any] = json.loads(text)
        sizes = dict(values["sizes"])
        sizes["model"] = ModelSizes(**sizes["model"])
        return TorchLoop(**(values | {"sizes": Sizes(**sizes)}))


def run_turn(sizes: Sizes, *, schedule: str, num_processes: int, keeps_outputs: bool = True) -> Turn:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        loops = [
            TorchLoop(
                sizes=sizes,
                schedule=schedule,
                keeps_outputs=keeps_outputs,
                num_steps=NUM_STEPS,
                num_processes=num_processes,
                index=index,
                store_path=str(Path(folder) / "store"),
            )
            for index in range(num_processes)
        ]
        outcomes = _run_all(loops, Path(folder))
    ends_ns = zip(*(outcome["step_ends_ns"] for outcome in outcomes), strict=True)
    return Turn(step_ends_ns=tuple(max(each) for each in ends_ns), losses=tuple(outcomes[-1]["losses"]))


def _run_all(loops: list[TorchLoop], folder: Path) -> list[dict[str, Any]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for loop in loops:
            with (folder / f"out-{loop.index}").open("wb") as out, (folder / f"err-{loop.index}").open("wb") as err:
                command = [sys.executable, "-m", "benchmarks.torch_loop", loop.to_json()]
                running.append(subprocess.Popen(command, stdout=out, stderr=err, env=environment))
        _await_exits(running)
    finally:
        for process in running:
            process.kill()
            process.wait()
    # The one that failed first tells why; those that were killed for it come last.
    for loop, process in sorted(
        zip(loops, running, strict=True), key=lambda pair: pair[1].returncode == -signal.SIGKILL
    ):
        if process.returncode != 0:
            words = (folder / f"err-{loop.index}").read_text(errors="replace")[-_NUM_LAST_CHARACTERS:]
            name = f"process {loop.index} of torch {loop.schedule or 'alone'}"
            raise RuntimeError(f"{name} ended with code {process.returncode}:\n{words}")
    return [json.loads((folder / f"out-{loop.index}").read_text().splitlines()[-1]) for loop in loops]


def _await_exits(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until all have ended, or one has failed, or the turn takes too long; without looking again and again."""
    poll = select.poll()
    with ExitStack() as stack:
        waiting: dict[int, subprocess.Popen[bytes]] = {}
        for process in running:
            descriptor = os.pidfd_open(process.pid)
            stack.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)
            waiting[descriptor] = process
        deadline = time.monotonic() + _TURN_S
        while waiting:
            ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ended:
                raise TimeoutError(f"a turn of plain torch did not end within {_TURN_S:g} s")
            for descriptor, _ in ended:
                poll.unregister(descriptor)
                if waiting.pop(descriptor).wait() != 0:
                    return
