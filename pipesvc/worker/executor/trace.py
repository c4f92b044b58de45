"""What ran when, and what it waited for: collected here, sent once per stage and step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pipesvc.core.actions import Action
from pipesvc.rpc.v1 import local_pb2

# A message must fit the local socket; an event has about 80 bytes.
MAX_EVENTS: Final = 256


class TraceLog:
    """One action at a time runs, so waiting and running take turns."""

    def __init__(self, worker: str, credit_ns: Callable[[], int], now_ns: Callable[[], int] = time.time_ns) -> None:
        """`credit_ns` as in `Port.credit_ns`."""
        self._worker = worker
        self._credit_ns = credit_ns
        self._now_ns = now_ns
        self._events: list[local_pb2.TraceEvent] = []
        self._awaited = ""
        self._waiting_since_ns = 0
        self._awaited_ns = 0
        # What `credit_ns` was when the wait began, and how much of the wait was for credit.
        self._credit_before_ns = 0
        self._awaited_credit_ns = 0
        self._started_ns = 0

    def waits(self, awaited: str) -> None:
        """Nothing can run; the first reason of a wait is kept, since it began it."""
        if not self._waiting_since_ns:
            self._waiting_since_ns = self._now_ns()
            self._credit_before_ns = self._credit_ns()
            self._awaited = awaited

    def starts(self) -> int:
        self._started_ns = self._now_ns()
        if self._waiting_since_ns:
            self._awaited_ns = max(0, self._started_ns - self._waiting_since_ns)
            self._awaited_credit_ns = min(self._awaited_ns, max(0, self._credit_ns() - self._credit_before_ns))
        return self._started_ns

    def ends(self, action: Action, step: int, name: str) -> None:
        self._events.append(
            local_pb2.TraceEvent(
                step=step,
                stage=action.stage,
                micro_batch=action.micro_batch or 0,
                action=name,
                start_unix_ns=self._started_ns,
                end_unix_ns=self._now_ns(),
                awaited=self._awaited,
                awaited_ns=self._awaited_ns,
                awaited_credit_ns=self._awaited_credit_ns,
                worker=self._worker,
            )
        )
        self._awaited = ""
        self._waiting_since_ns = self._awaited_ns = self._awaited_credit_ns = 0

    def drain(self, no_core_ns: int) -> list[local_pb2.FromChild]:
        """The events so far as messages to report, the last of them with so much time without a core; what is drained
        is forgotten."""
        events, self._events = self._events, []
        if events:
            events[-1].no_core_ns = no_core_ns
        return [
            local_pb2.FromChild(trace=local_pb2.Trace(events=events[start : start + MAX_EVENTS]))
            for start in range(0, len(events), MAX_EVENTS)
        ]
