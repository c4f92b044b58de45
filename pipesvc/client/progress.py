"""A run as people follow it: a bar on a terminal, plain lines in a log.

A bar that redraws itself fills a log file with control characters, and a line per step floods it; so what is shown
follows from where it goes.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import IO, Final, Protocol

from pipesvc.client.run import Run
from pipesvc.client.watching import ENDED, Evaluated, Step, state_name
from pipesvc.rpc.v1 import run_pb2

_NUM_RECENT: Final = 50
_LINE_EVERY_S: Final = 1.0


class Pace:
    """Speed over the recent steps, by the coordinator's clock."""

    def __init__(self) -> None:
        self._recent: deque[Step] = deque(maxlen=_NUM_RECENT)

    def add(self, step: Step) -> None:
        self._recent.append(step)

    @property
    def step_s(self) -> float | None:
        """Seconds per step; None before the second step."""
        if len(self._recent) < 2:
            return None
        return max(1e-9, self._recent[-1].time - self._recent[0].time) / (len(self._recent) - 1)

    @property
    def rows_per_s(self) -> float | None:
        if (step_s := self.step_s) is None:
            return None
        num_rows = sum(step.num_rows for step in self._recent) - self._recent[0].num_rows
        return num_rows / (step_s * (len(self._recent) - 1))

    def left_s(self, num_steps: int) -> float | None:
        """Seconds until the last step; None while the number of steps is unknown."""
        if not num_steps or (step_s := self.step_s) is None:
            return None
        return step_s * max(0, num_steps - self._recent[-1].index)


class _View(Protocol):
    def state(self, run: run_pb2.Run) -> None: ...
    def step(self, step: Step) -> None: ...
    def evaluation(self, found: Evaluated) -> None: ...
    def close(self) -> None: ...


def follow(run: Run, *, file: IO[str] | None = None, from_step: int = 1) -> str:
    """Show the run until it ends; returns COMPLETED or CANCELLED, raises what failed it."""
    out = file if file is not None else sys.stderr
    view: _View = _Bar(run.run_id, out) if out.isatty() else _Lines(run.run_id, out)
    state = ""
    try:
        with closing(run.events(from_step)) as events:
            for event in events:
                if isinstance(event, Step):
                    view.step(event)
                elif isinstance(event, Evaluated):
                    view.evaluation(event)
                else:
                    state = state_name(event.state)
                    view.state(event)
    finally:
        view.close()
    return state


class SubmitView:
    """What a submitted run shows until it has a plan: its id on `out`, for scripts, then what it waits for."""

    def __init__(self, out: IO[str], file: IO[str]) -> None:
        self._out, self._file = out, file
        self._shown = ""
        self.run_id = ""

    def __call__(self, run: run_pb2.Run) -> None:
        if not self.run_id:
            self.run_id = run.run_id
            print(run.run_id, file=self._out, flush=True)
        text = waiting_text(run)
        if text and text != self._shown and run.state not in ENDED:
            self._shown = text
            print(f"{run.run_id}: {state_name(run.state)}: waits for {text}", file=self._file, flush=True)


def waiting_text(run: run_pb2.Run) -> str:
    """What the run waits for, from whom; empty if for nothing."""
    return awaited_text(run.awaited)


def awaited_text(awaited: Iterable[run_pb2.Awaited]) -> str:
    return "; ".join(f"{a.what} from {a.from_whom}" if a.from_whom else a.what for a in awaited)


def duration(seconds: float) -> str:
    """ "42 s", "3 min 5 s", "2 h 7 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def step_text(step: Step, num_steps: int, pace: Pace, *, is_prediction: bool = False) -> str:
    """One step, or a batch of a prediction, in one line."""
    parts = [f"{'batch' if is_prediction else 'step'} {step.index}" + (f"/{num_steps}" if num_steps else "")]
    if not is_prediction:
        parts.append(f"loss {step.loss:.4f}")
    if (rows_per_s := pace.rows_per_s) is not None:
        parts.append(f"{rows_per_s:,.0f} rows/s" if rows_per_s >= 10 else f"{rows_per_s:.1f} rows/s")
    if (left_s := pace.left_s(num_steps)) is not None:
        parts.append(f"{duration(left_s)} left")
    return ", ".join(parts)


class _Lines:
    """At most a line per second, and always the last step."""

    def __init__(self, run_id: str, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._run_id, self._file, self._clock = run_id, file, clock
        self._pace = Pace()
        self._num_steps = 0
        self._is_prediction = False
        self._shown_state = ""
        self._unshown: Step | None = None
        self._shown_at = float("-inf")

    def state(self, run: run_pb2.Run) -> None:
        self._num_steps = run.num_steps or self._num_steps
        self._is_prediction = run.is_prediction
        text = state_name(run.state)
        if run.state in (run_pb2.RUN_STATE_WAITING, run_pb2.RUN_STATE_QUEUED) and run.awaited:
            text += f": {waiting_text(run)}"
        if text != self._shown_state:
            self._flush()
            self._shown_state = text
            self._print(text)

    def step(self, step: Step) -> None:
        self._pace.add(step)
        self._unshown = step
        if self._clock() - self._shown_at >= _LINE_EVERY_S:
            self._flush()

    def evaluation(self, found: Evaluated) -> None:
        self._flush()
        self._print(str(found))

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._unshown is not None:
            text = step_text(self._unshown, self._num_steps, self._pace, is_prediction=self._is_prediction)
            self._print(text)
            self._unshown, self._shown_at = None, self._clock()

    def _print(self, text: str) -> None:
        print(f"{self._run_id}: {text}", file=self._file, flush=True)


class _Bar:
    """A line that redraws itself: step, loss, rows per second, time left."""

    def __init__(self, run_id: str, file: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=file)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
        self._progress = Progress(*columns, console=console, transient=False)
        self._task = self._progress.add_task(run_id, total=None, text="")
        self._pace = Pace()
        self._num_steps = 0
        self._is_prediction = False
        self._progress.start()

    def state(self, run: run_pb2.Run) -> None:
        self._num_steps = run.num_steps or self._num_steps
        self._is_prediction = run.is_prediction
        total = run.num_steps or None
        if run.state == run_pb2.RUN_STATE_RUNNING:
            self._progress.update(self._task, total=total)
        else:
            text = state_name(run.state).lower()
            text = f"{text}: {waiting_text(run)}" if run.awaited else text
            self._progress.update(self._task, total=total, text=text)

    def step(self, step: Step) -> None:
        self._pace.add(step)
        text = step_text(step, self._num_steps, self._pace, is_prediction=self._is_prediction)
        self._progress.update(self._task, completed=step.index, text=text)

    def evaluation(self, found: Evaluated) -> None:
        self._progress.console.print(str(found), highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()
