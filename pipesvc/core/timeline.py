"""One simulated step: when each action runs, and what follows from it.

Apart from the simulator, because those who draw, print and compare a step need not know how it was played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipesvc.core.actions import Action


@dataclass(frozen=True, slots=True)
class Span:
    """One action with its start and end."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One step. Spans are made when asked for: a choice among many schedules looks at none of them."""

    step_s: float
    busy_s: tuple[float, ...]  # per stage
    worker_busy_s: Mapping[str, float]
    peak_in_flight: tuple[int, ...]  # per stage: the most micro-batches at once
    link_bytes: Mapping[tuple[str, str], int]  # (sender, receiver) -> bytes in this step
    actions: Sequence[Action]  # worker by worker, each in the order of its list
    starts_s: Sequence[float]  # of `actions`
    ends_s: Sequence[float]

    @property
    def bubble(self) -> float:
        """The part of the workers' time in which they do nothing."""
        return 1 - sum(self.worker_busy_s.values()) / (len(self.worker_busy_s) * self.step_s) if self.step_s else 0.0

    @property
    def worker_bubbles(self) -> dict[str, float]:
        """The same of each worker."""
        return {
            worker: 1 - busy_s / self.step_s if self.step_s else 0.0 for worker, busy_s in self.worker_busy_s.items()
        }

    @property
    def spans(self) -> tuple[Span, ...]:
        """In order of start."""
        made = map(Span, self.actions, self.starts_s, self.ends_s)
        return tuple(sorted(made, key=lambda span: (span.start_s, span.end_s)))

    def diagram(self, unit_s: float = 1.0) -> str:
        """One row per stage, one cell per unit of time: `F0 F1 .. B0 B0`, dots where the stage is idle."""
        num_cells = round(self.step_s / unit_s)
        rows = [["."] * num_cells for _ in self.busy_s]
        for span in self.spans:
            action = span.action
            for cell in range(round(span.start_s / unit_s), round(span.end_s / unit_s)):
                rows[action.stage][cell] = str(action).removeprefix(str(action.stage))
        width = max((len(cell) for row in rows for cell in row), default=1)
        return "\n".join(" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)
