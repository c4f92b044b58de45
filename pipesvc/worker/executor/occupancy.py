"""The clocks of `idle`: asks them when the executor begins or ends a wait, and shows its agent what it has counted.

Nothing of this costs an action anything but two comparisons: the system is asked for the run delay where a step ends,
and a few times a second within a long one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.executor.idle import IdleClock
from pipesvc.worker.port_like import PortLike

_SHOW_NS: Final = 250_000_000


def run_delay_ns() -> int | None:
    """How long the calling thread has been able to run and had no core; None where the system does not say.

    Second field of schedstat (kernel documentation, scheduler/sched-stats.rst), which a kernel may be built without.
    """
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None


class Occupancy:
    """Of one executor, by whose thread it is used. `now_ns` is the clock of its progress."""

    def __init__(
        self,
        port: PortLike,
        now_ns: Callable[[], int] = time.time_ns,
        delay_ns: Callable[[], int | None] = run_delay_ns,
    ) -> None:
        self._port = port
        self._now_ns = now_ns
        self._delay_ns = delay_ns
        self._idle = IdleClock()
        self._shown_ns = 0
        self._no_core_ns = 0  # of the step that runs

    def note(self, now_ns: int, step: int | None, *, is_waiting: bool) -> None:
        """What the executor does from now on, in a step or (None) between two.

        What comes before the first step does not count. What lies between two is shown with the second, so that
        the wait for the end of a run, in which others save, is not taken for a lack of input.
        """
        if not self._shown_ns:
            if step is not None:
                credit_ns = self._port.credit_ns()
                self._idle.begins(now_ns, is_waiting=is_waiting, credit_ns=credit_ns, run_delay_ns=self._delay_ns())
                self._shown_ns = now_ns
            return
        if is_waiting != self._idle.is_waiting:
            self._idle.turns(now_ns, is_waiting=is_waiting, credit_ns=self._port.credit_ns())
        if step is not None and now_ns - self._shown_ns >= _SHOW_NS:
            self._show(now_ns)

    def step_ended(self) -> int:
        """Shows all up to now; returns for how long there was no core since the last step ended."""
        if self._shown_ns:
            self._show(self._now_ns())
        no_core_ns, self._no_core_ns = self._no_core_ns, 0
        return no_core_ns

    def _show(self, now_ns: int) -> None:
        self._idle.turns(now_ns, is_waiting=self._idle.is_waiting, credit_ns=self._port.credit_ns())
        self._no_core_ns += self._idle.delayed(self._delay_ns())
        self._port.report(local_pb2.FromChild(executor_times=self._idle.times()))
        self._shown_ns = now_ns
