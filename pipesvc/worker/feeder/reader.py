"""The thread that reads the source ahead, as far as it has permits.

Reading in the loop that answers the coordinator would make every batch wait for its turn, and a source that blocks
would block the answer too. A permit stands for the batches of one step that are read and not yet given up: `capacity`
batches with double buffering, given back when the step is sent; else one step, given back when it is committed, so
nothing is read ahead.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.source_paths import shown_traceback
from pipesvc.worker.feeder.batches import RawStep
from pipesvc.worker.user_errors import user_error

_ALWAYS: Final[AbstractContextManager[Any]] = nullcontext()


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """There are no more batches."""


Arrival = RawStep | SourceEnded | PipesvcError


class Reader:
    """`take` and `reading_since_s` are for the main thread; `wake` is called on the reader's thread.

    Each step is read within `turn`, and all of them within `throughout`; what these wait for is not the source's time.
    """

    def __init__(
        self,
        steps: Iterator[RawStep | None],
        num_permits: int,
        wake: Callable[[], None],
        where: Where,
        *,
        turn: AbstractContextManager[Any] = _ALWAYS,
        throughout: AbstractContextManager[Any] = _ALWAYS,
    ) -> None:
        self._steps = steps
        self._permits = threading.Semaphore(num_permits)
        self._wake = wake
        self._where = where
        self._turn = turn
        self._throughout = throughout
        self._arrivals: deque[Arrival] = deque()
        self._reading_since_s: float | None = None
        self._closing = threading.Lock()
        self._is_closed = False
        # A source that blocks for ever must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="source-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, wait_s: float) -> None:
        """Ask the thread to end after the batch that it is reading, and give it so long. `wake` is not called again."""
        with self._closing:
            self._is_closed = True
        self._permits.release()
        self._thread.join(wait_s)

    def give_permit(self) -> None:
        self._permits.release()

    def take(self) -> list[Arrival]:
        taken: list[Arrival] = []
        while self._arrivals:
            taken.append(self._arrivals.popleft())
        return taken

    def reading_since_s(self) -> float | None:
        """When the source was asked for the batch that it owes (time.monotonic()); None: nothing is asked."""
        return self._reading_since_s

    def stuck_at(self) -> str:
        """Where the source is now, as a traceback; for the error that says that it took too long."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return shown_traceback("".join(traceback.format_stack(frame))) if frame is not None else ""

    def _run(self) -> None:
        with self._throughout:
            self._read_all()

    def _read_all(self) -> None:
        is_going_on = True
        while is_going_on:
            self._permits.acquire()
            if self._is_closed:
                return
            with self._turn:
                self._reading_since_s = time.monotonic()
                arrival = self._read_one()
                is_going_on = isinstance(arrival, RawStep)
                self._arrivals.append(arrival)
                self._reading_since_s = None
            with self._closing:
                if self._is_closed:
                    return
                self._wake()

    def _read_one(self) -> Arrival:
        start_ns = time.time_ns()
        try:
            for step in self._steps:
                if step is not None:
                    step.read_start_ns, step.read_end_ns = start_ns, time.time_ns()
                    return step
                self._reading_since_s = time.monotonic()
        except PipesvcError as error:
            return error
        except BaseException as cause:
            return user_error(ErrorCode.DATA_SOURCE_FAILED, "the data source", cause, where=self._where)
        return SourceEnded()
