"""A simulated step in the terminal: who does what when.

A table of times does not show why a pipeline waits; a drawing does. One row per worker, time from left to right, each
action as many cells wide as it lasts, as far as whole cells allow. Pure: spans in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pipesvc.core.actions import Action, ActionKind
from pipesvc.core.schedule_search import seconds_text
from pipesvc.core.timeline import Span

# What fills the cells of an action behind its name.
_FILLS: Final = {ActionKind.FORWARD: "-", ActionKind.WEIGHT_BACKWARD: "~"}
_OTHER_FILL: Final = "="
_IDLE: Final = "."
_MIN_CELLS: Final = 10
KIND_NAMES: Final = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.INPUT_BACKWARD: "input backward",
    ActionKind.WEIGHT_BACKWARD: "weight backward",
    ActionKind.NORM: "norm",
    ActionKind.DECIDE: "decide",
    ActionKind.UPDATE: "update",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One worker and the stages that it holds."""

    name: str
    stages: tuple[int, ...]

    def names_of(self, action: Action) -> Iterator[str]:
        """The whole one, "F3", or "1F3" where the stage is in doubt; then what is left where that has no room: "F"."""
        whole = str(action)
        yield whole if len(self.stages) > 1 else whole.removeprefix(str(action.stage))
        yield action.kind.value


def gantt_text(rows: Sequence[Row], spans: Sequence[Span], *, width: int) -> str:
    """The step, at most `width` columns wide if that leaves room for ten cells of time."""
    name_width = max(len(row.name) for row in rows)
    num_cells = max(_MIN_CELLS, width - name_width - 2)
    step_s = max((span.end_s for span in spans), default=0.0)
    cell_s = step_s / num_cells
    lines = [f"{row.name.ljust(name_width)}  {_cells(row, spans, num_cells, cell_s)}" for row in rows]
    end = seconds_text(step_s)
    axis = "0 s".ljust(num_cells - len(end)) + end
    return "\n".join([*lines, f"{' ' * name_width}  {axis}", legend(spans)])


def legend(spans: Sequence[Span]) -> str:
    """The letters that occur, with their meaning."""
    kinds = {span.action.kind for span in spans if span.end_s > span.start_s}
    return ", ".join(f"{kind.value} {name}" for kind, name in KIND_NAMES.items() if kind in kinds)


def _cells(row: Row, spans: Sequence[Span], num_cells: int, cell_s: float) -> str:
    cells = [_IDLE] * num_cells
    for span in spans:
        if span.action.stage in row.stages and cell_s:
            # Rounded at both ends alike, so that actions one after the other leave no gap between them.
            first, end = round(span.start_s / cell_s), round(span.end_s / cell_s)
            cells[first:end] = _drawn(row, span.action, end - first)
    return "".join(cells)


def _drawn(row: Row, action: Action, num_cells: int) -> str:
    """The longest name that fits, filled up to so many cells."""
    name = next((name for name in row.names_of(action) if len(name) <= num_cells), "")
    return name.ljust(num_cells, _FILLS.get(action.kind, _OTHER_FILL))
