"""Says what a child does now, or what it awaits and from whom: the agent puts the newest into its next beat.

A child that is waiting says so once for each new reason, not once for each turn of its loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.port_like import PortLike


class ProgressReporter:
    def __init__(self, port: PortLike, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._port = port
        self._now_ns = now_ns
        self._awaiting: str | None = None

    def busy(
        self, phase: str, *, step: int | None = None, stage: int | None = None, micro_batch: int | None = None
    ) -> None:
        self._awaiting = None
        self._report(
            local_pb2.Progress(
                phase=phase, step=step, stage=stage, micro_batch=micro_batch, since_unix_ns=self._now_ns()
            )
        )

    def waiting(self, awaiting: str, *, step: int | None = None) -> None:
        if awaiting == self._awaiting:
            return
        self._awaiting = awaiting
        self._report(local_pb2.Progress(phase="waiting", step=step, awaiting=awaiting, since_unix_ns=self._now_ns()))

    def _report(self, progress: local_pb2.Progress) -> None:
        self._port.report(local_pb2.FromChild(progress=progress))
