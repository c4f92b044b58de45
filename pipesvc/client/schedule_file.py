"""A schedule that the user wrote, as a value of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipesvc.client import checks
from pipesvc.core import schedule_csv
from pipesvc.core.schedule_csv import ScheduleTable
from pipesvc.errors import PipesvcError


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """A CSV file as torch.distributed.pipelining writes it: one row for each worker, `0F0,0F1,0B0,0B1` in its cells.

    It is read and checked when this value is made, and whether its micro-batches are those of a step in the strategy
    that gives their number; what becomes of the file later changes no job.
    """

    path: str | Path
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.path("a schedule file's path", self.path)
        try:
            text = Path(self.path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise checks.refuse(f"the schedule file {str(self.path)!r} cannot be read: {error}") from None
        object.__setattr__(self, "text", text)
        self.table()

    def table(self, num_micro_batches: int | None = None) -> ScheduleTable:
        """Refuses what cannot run, or not with so many micro-batches, with the file's name."""
        try:
            return schedule_csv.read(self.text, num_micro_batches)
        except PipesvcError as error:
            message = f"{self.path}: {error.details.message}"
            raise PipesvcError(error.code, message, advice=error.details.advice) from None
