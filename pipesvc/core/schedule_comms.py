"""The communication cells of a schedule file: checked against the rest, and then not needed.

torch writes where each activation and gradient is sent and received, since its calls must pair up: a send is handed
over and goes on, a receive waits, and what one row receives from another comes in the order in which it was sent.
Links deliver without being told, so these cells add nothing; but a file whose cells contradict each other is not what
its writer meant, and is refused.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from pipesvc.core.actions import Action, Result, ResultKind, needs, results
from pipesvc.core.checker import Fault, faults_of_waiting

_TEXT: Final = re.compile(r"(0|[1-9][0-9]{0,8})(SEND|RECV)_([FB])(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Comm:
    """One send or receive of a stage: of an activation (F) or of a gradient (B)."""

    stage: int
    verb: str  # SEND or RECV
    letter: str  # F or B
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.verb}_{self.letter}{self.micro_batch}"

    @property
    def result(self) -> Result:
        """What travels: a stage sends its own result and receives that of its neighbour."""
        kind = ResultKind.OUTPUT if self.letter == "F" else ResultKind.INPUT_GRADIENT
        to_neighbour = 0 if self.verb == "SEND" else -1 if self.letter == "F" else 1
        return Result(self.stage + to_neighbour, kind, self.micro_batch)


Rows = Sequence[Sequence[Action | Comm]]


def parse_comm(cell: str) -> Comm | None:
    match = _TEXT.fullmatch(cell)
    return None if match is None else Comm(int(match[1]), match[2], match[3], int(match[4]))


def find_comm_fault(rows: Rows, num_stages: int) -> Fault | None:
    """The first cell that does not fit. The actions of these rows have passed the checker; workers are `row N`."""
    if not any(isinstance(cell, Comm) for row in rows for cell in row):
        return None
    for faults in (_faults_of_rows(rows, num_stages), _faults_of_pairs(rows), _faults_of_waiting(rows)):
        for fault in faults:
            return fault
    return None


def _faults_of_rows(rows: Rows, num_stages: int) -> Iterator[Fault]:
    """Each row sends what it has and another row needs, and receives what it needs before it needs it."""
    home = {cell.stage: number for number, row in enumerate(rows) for cell in row if isinstance(cell, Action)}
    given: dict[Result, int] = {}
    needed: dict[Result, int] = {}
    for number, row in enumerate(rows):
        for cell in row:
            if isinstance(cell, Action):
                given.update(dict.fromkeys(results(cell), number))
                wanted = needs(cell, num_stages=num_stages, num_micro_batches=1, decides=False)
                needed.update({result: number for result in wanted if result.stage != cell.stage})
    for number, row in enumerate(rows):
        name = _name(number)
        had: set[Result] = set()
        seen: set[Comm] = set()
        for position, cell in enumerate(row):
            if isinstance(cell, Action):
                for result in needs(cell, num_stages=num_stages, num_micro_batches=1, decides=False):
                    if home[result.stage] != number and result not in had:
                        text = f"{cell} comes before its {_receive(result)}"
                        yield Fault(text, "A file with communication has all of it.", name, position)
                had.update(results(cell))
                continue
            result = cell.result
            crosses = result in given and result in needed and given[result] != needed[result]
            if home.get(cell.stage) != number:
                yield Fault(f"{cell} is not on the row of stage {cell.stage}", "", name, position)
            elif not crosses:
                yield Fault(f"{cell} carries nothing from one row to another", "Leave it out.", name, position)
            elif cell in seen:
                yield Fault(f"{cell} is there twice", "", name, position)
            elif cell.verb == "SEND" and result not in had:
                yield Fault(f"{cell} comes before the action that gives it", "", name, position)
            seen.add(cell)
            if cell.verb == "RECV":
                had.add(result)
        for result in had:
            if result in needed and given[result] == number != needed[result] and _send(result) not in seen:
                yield Fault(f"{name} lacks {_send(result)}", "A file with communication has all of it.")


def _faults_of_pairs(rows: Rows) -> Iterator[Fault]:
    """Every send has its receive and every receive its send; from one row to another they are in the same order."""
    sender = {cell.result: number for number, row in enumerate(rows) for cell in row if _is(cell, "SEND")}
    receiver = {cell.result: number for number, row in enumerate(rows) for cell in row if _is(cell, "RECV")}
    sent: dict[tuple[int, int], deque[Comm]] = {}
    for number, row in enumerate(rows):
        for cell in row:
            if _is(cell, "SEND"):
                sent.setdefault((number, receiver[cell.result]), deque()).append(cell)
    for number, row in enumerate(rows):
        for position, cell in enumerate(row):
            if _is(cell, "RECV"):
                send = sent[sender[cell.result], number].popleft()
                if send.result != cell.result:
                    text = f"{cell} would take what {send} has sent before"
                    advice = "From one row to another, receives are in the order of their sends."
                    yield Fault(text, advice, _name(number), position)


def _faults_of_waiting(rows: Rows) -> Iterator[Fault]:
    """Each row goes on until a receive lacks its send."""
    lists = {_name(number): row for number, row in enumerate(rows)}
    yield from faults_of_waiting(
        lists,
        needs=lambda cell: (cell.result,) if _is(cell, "RECV") else (),
        gives=lambda cell: (cell.result,) if _is(cell, "SEND") else (),
    )


def _is(cell: Action | Comm, verb: str) -> TypeGuard[Comm]:
    return isinstance(cell, Comm) and cell.verb == verb


def _name(number: int) -> str:
    return f"row {number + 1}"


def _letter(result: Result) -> str:
    return "F" if result.kind is ResultKind.OUTPUT else "B"


def _send(result: Result) -> Comm:
    return Comm(result.stage, "SEND", _letter(result), result.micro_batch or 0)


def _receive(result: Result) -> Comm:
    stage = result.stage + (1 if result.kind is ResultKind.OUTPUT else -1)
    return Comm(stage, "RECV", _letter(result), result.micro_batch or 0)
