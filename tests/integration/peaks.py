"""The most that processes have held at once, as the kernel keeps it (VmHWM).

What two looks at a process miss is only what it does last of all.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


class Watch:
    """How much the peaks of this process and of all below it grow while it is open. Those that are born meanwhile are
    all forked from equal ones, so they begin with what the one seen earliest had."""

    def __init__(self) -> None:
        self.begins: dict[int, int] = {}
        self.births: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # forgets the peak of before
            self.begins[process.pid] = peak_bytes(process.pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def growths(self) -> list[int]:
        born = min(self.births.values())
        return [peak - self.begins.get(pid, born) for pid, peak in self.peaks.items()]

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, OSError, StopIteration):  # it has just ended
                self.peaks[process.pid] = peak = peak_bytes(process.pid)
                if process.pid not in self.begins:
                    self.births.setdefault(process.pid, peak)
