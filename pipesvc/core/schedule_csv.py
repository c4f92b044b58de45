"""Schedules as files, in the CSV form of torch.distributed.pipelining and torchtitan.

One row for each worker (torch's rank), one cell for each action in order: `0F0`, `1B3`, `0I3`, `2W3`; empty cells are
pauses and mean nothing here. Files with communication are read as well: their sends and receives must fit the rest and
are then left out, since links need none; so are the actions of sharded parameters, which do nothing where none are
sharded. torch's own reader takes duplicates, gaps and trailing junk; this one refuses them with row and column, both
counted from 1. Nothing in a cell needs quotes, so a quote is allowed around a whole cell only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pipesvc.core.actions import PER_MICRO_BATCH, Action, parse
from pipesvc.core.checker import Contents, Fault, find_fault
from pipesvc.core.generators.once import once_a_step
from pipesvc.core.schedule_comms import Comm, find_comm_fault, parse_comm
from pipesvc.errors import ErrorCode, PipesvcError

_SHARDED: Final = re.compile(r"(0|[1-9][0-9]{0,8})(?:UNSHARD|RESHARD|REDUCE_GRAD)")
_END_OF_ROW: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t"
_BYTE_ORDER_MARK: Final = "\ufeff"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleTable:
    """Forwards and backwards of one step, a row for each worker."""

    rows: tuple[tuple[Action, ...], ...]
    num_stages: int
    num_micro_batches: int

    @property
    def stages_of_rows(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted({action.stage for action in row})) for row in self.rows)


@lru_cache(maxsize=8)  # an executor asks again for every step
def read(text: str, num_micro_batches: int | None = None) -> ScheduleTable:
    """The table in this text, which can run; anything else is refused with row, column and rule.

    `num_micro_batches` is what a step will have. None: as many as the file names; whether any is missing, or one too
    many, is not asked before their number is known.
    """
    if text.startswith(_BYTE_ORDER_MARK):
        raise _refusal("the file", "begins with a byte order mark (BOM)", "Save it as UTF-8 without one.")
    cells = [[_text(cell) for cell in line.split(",")] for line in _END_OF_ROW.split(text)]
    while cells and not any(cells[-1]):
        cells.pop()
    rows: list[list[tuple[int, Action | Comm]]] = []  # column and what stands there
    for number, row in enumerate(cells, 1):
        rows.append([(column, _parsed(cell, number, column)) for column, cell in enumerate(row, 1) if _says(cell)])
        held = {action.stage for _, action in rows[-1] if isinstance(action, Action)}
        if not held:
            raise _refusal(f"row {number}", "has no action", "Each row is a worker; leave out those that do nothing.")
        for column, cell in enumerate(row, 1):
            if (sharded := _SHARDED.fullmatch(cell)) and int(sharded[1]) not in held:
                at = f"row {number}, column {column}"
                raise _refusal(at, f"{cell} is of a stage that has no action on this row", "Leave it out.")
    return _checked(rows, num_micro_batches)


def write(rows: Sequence[Sequence[Action]]) -> str:
    """The text that torch reads as well; what a step has once is left out, since torch adds its own."""
    return "".join(
        ",".join(str(action) for action in actions if action.kind in PER_MICRO_BATCH) + "\n" for actions in rows
    )


def _text(cell: str) -> str:
    """Without the blanks around it, and the quotes that may be around all of it."""
    bare = cell.strip(_BLANKS)
    is_quoted = len(bare) > 1 and bare[0] == bare[-1] == '"'
    return bare[1:-1].strip(_BLANKS) if is_quoted else bare


def _says(cell: str) -> bool:
    return bool(cell) and _SHARDED.fullmatch(cell) is None


def _parsed(cell: str, row: int, column: int) -> Action | Comm:
    at = f"row {row}, column {column}"
    if "OVERLAP_F_B" in cell:
        raise _refusal(at, f"{cell!r} is an overlapped pair (OVERLAP_F_B)", "Write its two actions into two cells.")
    comm = parse_comm(cell)
    if comm is not None:
        return comm
    try:
        action = parse(cell)
    except PipesvcError as error:
        raise _refusal(at, error.details.message, error.details.advice) from None
    if action.kind not in PER_MICRO_BATCH:
        raise _refusal(at, f"{cell} is not for a file", "Norms, decision and updates are added when a step runs.")
    return action


def _checked(rows: Sequence[Sequence[tuple[int, Action | Comm]]], num_micro_batches: int | None) -> ScheduleTable:
    computes = [[(column, action) for column, action in row if isinstance(action, Action)] for row in rows]
    actions = [action for row in computes for _, action in row]
    if not actions:
        raise _refusal("the file", "has no action", "Write one row for each worker, such as 0F0,0B0.")
    _check_stages(computes)
    num_stages = max(action.stage for action in actions) + 1
    num_written = max(action.micro_batch or 0 for action in actions) + 1
    table = ScheduleTable(
        rows=tuple(tuple(action for _, action in row) for row in computes),
        num_stages=num_stages,
        num_micro_batches=num_written if num_micro_batches is None else num_micro_batches,
    )
    if num_written < table.num_micro_batches:
        text = f"it has {num_written} micro-batches, and a step has micro_batches={num_micro_batches}"
        raise _refusal("the file", text, f"Use micro_batches={num_written}, or a file for {num_micro_batches}.")
    if num_stages * table.num_micro_batches > len(actions):
        # An index of a thousand million in a short file must not become a search for what is missing.
        if num_micro_batches is None:
            return table
        text = f"{num_stages} stages and {num_micro_batches} micro-batches are named by {len(actions)} actions"
        raise _refusal("the file", text, "Every stage has an F and a B (or I and W) of every micro-batch.")
    lists = {
        f"row {number}": [action for _, action in row]
        + once_a_step(sorted({action.stage for _, action in row}), decides=False)
        for number, row in enumerate(computes, 1)
    }
    contents = Contents(num_stages=num_stages, num_micro_batches=table.num_micro_batches)
    fault = find_fault(lists, contents, bounds={})
    if fault is not None and fault.position is None and num_micro_batches is None:
        return table
    columns = [[column for column, _ in row] for row in computes]
    if fault is None:
        fault = find_comm_fault([[action for _, action in row] for row in rows], num_stages)
        columns = [[column for column, _ in row] for row in rows]
    if fault is not None:
        raise _refusal(_place(fault, columns), fault.message, fault.advice)
    return table


def _check_stages(rows: Sequence[Sequence[tuple[int, Action]]]) -> None:
    held = sorted({action.stage for row in rows for _, action in row})
    missing = next((stage for stage, each in enumerate(held) if each != stage), None)
    if missing is None:
        return
    row, column, action = next(
        (row, column, action)
        for row, cells in enumerate(rows, 1)
        for column, action in cells
        if action.stage == held[missing]
    )
    text = f"{action} is of stage {action.stage}, and stage {missing} has no action"
    raise _refusal(f"row {row}, column {column}", text, "Stages count from 0 without a gap.")


def _place(fault: Fault, columns: Sequence[Sequence[int]]) -> str:
    if fault.position is None:
        return "the file"
    row = int(fault.worker.removeprefix("row "))
    return f"{fault.worker}, column {columns[row - 1][fault.position]}"


def _refusal(place: str, message: str, advice: str = "") -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_PLAN, f"schedule file, {place}: {message}", advice=advice)
