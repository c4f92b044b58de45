"""What watchers of runs are woken by, and the newest steps kept for them.

A queue per watcher grows with its slowness or loses what it holds. Here a watcher has no queue: it has a position,
and reads from there; the last steps of each live run lie in memory for those who keep up, and the journal has all of
them for those who do not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from pipesvc.coordinator.journal import Journal
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.run_record import ENDED_STATES
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import run_pb2

TAIL_STEPS: Final = 1024
_BATCH_STEPS: Final = 256
_BATCH_EVALUATIONS: Final = 256


class _Evaluations:
    """Those that one watcher has not been told, of which some at a time are in memory."""

    def __init__(self, journal: Journal, run_id: str, from_step: int) -> None:
        self._journal = journal
        self._run_id = run_id
        self._next_step = from_step
        self._read: deque[run_pb2.EvaluationRecord] = deque()

    async def before(self, step: int, evaluated_step: int) -> AsyncIterator[run_pb2.EvaluationRecord]:
        """Each once, those of the weights after earlier steps than this one; the journal has them up to the other."""
        while True:
            if not self._read and self._next_step <= evaluated_step:
                found = await self._journal.evaluations(self._run_id, self._next_step, _BATCH_EVALUATIONS)
                self._read.extend(found)
                self._next_step = found[-1].step + 1 if found else evaluated_step + 1
            if not self._read or self._read[0].step >= step:
                return
            yield self._read.popleft()


class Feed:
    """For the event loop's thread."""

    def __init__(self, machine: Machine, journal: Journal) -> None:
        self._machine = machine
        self._journal = journal
        self._versions: dict[str, int] = {}
        self._tails: dict[str, deque[run_pb2.StepRecord]] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}

    # --- told by the hub --------------------------------------------------------------------------------------------

    def run_changed(self, run: run_pb2.Run) -> None:
        if run.state in ENDED_STATES:
            self._versions.pop(run.run_id, None)
            self._tails.pop(run.run_id, None)
        else:
            self._versions[run.run_id] = self._versions.get(run.run_id, 0) + 1
        self._wake(run.run_id)

    def step_committed(self, run_id: str, record: run_pb2.StepRecord) -> None:
        self._tails.setdefault(run_id, deque(maxlen=TAIL_STEPS)).append(record)
        self._wake(run_id)

    def log_grown(self, run_id: str) -> None:
        self._wake(run_id)

    # --- asked by the services --------------------------------------------------------------------------------------

    async def events(self, run_id: str, from_step: int) -> AsyncIterator[run_pb2.WatchRunResponse]:
        """The run whenever it has changed, each step once from `from_step` on, and at last the run as it has ended.

        Evaluations come behind their step, that of the step before `from_step` too.
        """
        next_step, seen = max(self._machine.run(run_id).start.step + 1, from_step), -1
        evaluations = _Evaluations(self._journal, run_id, next_step - 1)
        with self.watching(run_id) as woken:
            while True:
                woken.clear()
                run, version = self._machine.run(run_id), self._versions.get(run_id, 0)
                is_ended = run.state in ENDED_STATES
                if version != seen and not is_ended:
                    yield run_pb2.WatchRunResponse(run=run)
                seen = version
                while next_step <= run.num_committed_steps:
                    for record in await self._steps(run_id, next_step):
                        async for evaluation in evaluations.before(record.step, run.evaluated_step):
                            yield run_pb2.WatchRunResponse(evaluation=evaluation)
                        yield run_pb2.WatchRunResponse(step=record)
                        next_step = record.step + 1
                async for evaluation in evaluations.before(run.evaluated_step + 1, run.evaluated_step):
                    yield run_pb2.WatchRunResponse(evaluation=evaluation)
                if is_ended:
                    yield run_pb2.WatchRunResponse(run=run)
                    return
                await woken.wait()

    @contextmanager
    def watching(self, run_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something of this run is new."""
        woken = asyncio.Event()
        watchers = self._watchers.setdefault(run_id, set())
        watchers.add(woken)
        try:
            yield woken
        finally:
            watchers.discard(woken)
            if not watchers:
                self._watchers.pop(run_id, None)

    async def _steps(self, run_id: str, from_step: int) -> list[run_pb2.StepRecord]:
        """Some of the committed steps from this one on: at least one."""
        tail = self._tails.get(run_id)
        if tail and tail[0].step <= from_step:
            begin = from_step - tail[0].step
            return [tail[index] for index in range(begin, min(len(tail), begin + _BATCH_STEPS))]
        steps = await self._journal.steps(run_id, from_step, _BATCH_STEPS)
        if not steps or steps[0].step != from_step:
            message = f"step {from_step} is committed and not in the journal"
            raise PipesvcError(ErrorCode.INTERNAL, message, where=Where(run_id=run_id, step=from_step))
        return steps

    def _wake(self, run_id: str) -> None:
        for woken in self._watchers.get(run_id, ()):
            woken.set()
