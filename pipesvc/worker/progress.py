"""Says what a child does now, or what it awaits and from whom: the agent puts the newest into its next beat.

A child that is waiting says so once for each new reason, not once for each turn of its loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pipesvc.rpc.v1 import local_pb2

if TYPE_CHECKING:
    from pipesvc.worker.executor.occupancy import Occupancy
    from pipesvc.worker.port_like import PortLike  # imports torch, which the agent must not

_DOING: Final = {
    "F": "in forward",
    "E": "in a forward without a backward",
    "B": "in backward",
    "N": "while computing the gradient norm",
    "D": "while combining the gradient norms",
    "U": "in the optimizer's update",
    "send": "while sending a batch",
}


def in_words(progress: local_pb2.Progress) -> str:
    """ "in forward of stage 1, micro-batch 2", "while waiting for ..." or "while inspecting"."""
    if progress.phase == "waiting":
        return f"while waiting for {progress.awaiting}" if progress.awaiting else "while waiting"
    doing = _DOING.get(progress.phase, f"while {progress.phase}")
    if not progress.HasField("stage"):
        return doing
    micro_batch = f", micro-batch {progress.micro_batch}" if progress.HasField("micro_batch") else ""
    of = " of" if progress.phase in _DOING else ""
    return f"{doing}{of} stage {progress.stage}{micro_batch}"


class ProgressReporter:
    """`occupancy`, where a child has one, is told of each as well."""

    def __init__(
        self, port: PortLike, now_ns: Callable[[], int] = time.time_ns, occupancy: Occupancy | None = None
    ) -> None:
        self._port = port
        self._now_ns = now_ns
        self._occupancy = occupancy
        self._awaiting: str | None = None

    def busy(
        self, phase: str, *, step: int | None = None, stage: int | None = None, micro_batch: int | None = None
    ) -> None:
        self._awaiting = None
        now_ns = self._now_ns()
        if self._occupancy is not None:
            self._occupancy.note(now_ns, step, is_waiting=False)
        self._report(
            local_pb2.Progress(phase=phase, step=step, stage=stage, micro_batch=micro_batch, since_unix_ns=now_ns)
        )

    def waiting(self, awaiting: str, *, step: int | None = None) -> None:
        now_ns = self._now_ns()
        if self._occupancy is not None:
            self._occupancy.note(now_ns, step, is_waiting=True)
        if awaiting == self._awaiting:
            return
        self._awaiting = awaiting
        self._report(local_pb2.Progress(phase="waiting", step=step, awaiting=awaiting, since_unix_ns=now_ns))

    def _report(self, progress: local_pb2.Progress) -> None:
        self._port.report(local_pb2.FromChild(progress=progress))
