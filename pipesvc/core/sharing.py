"""Which stages a worker holds together, as a schedule asks for it.

A schedule for several parts on each worker is an order for those parts: with another placement it would be another
schedule, or get stuck. So each schedule has one of four ways of sharing, for placing stages and for checking where a
user placed them.

Legend: p workers, r the index of a worker, s of a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from pipesvc.errors import ErrorCode, LayersError, PipesvcError

Rows = Sequence[tuple[int, ...]]  # the stages of each row of a schedule file


class Sharing(Enum):
    """Its value is the rule in words."""

    ANY = "a stage may lie anywhere"
    ROUND = "worker r of p holds stages r, r + p, r + 2p and so on"
    V = "worker r of p holds stages r and 2p - 1 - r"
    ROWS = "a worker holds the stages of one row of the file"


# Parts on each worker where the user gives no number of stages.
_PARTS: Final = {Sharing.ANY: 1, Sharing.ROUND: 2, Sharing.V: 2}


def num_stages_by_default(sharing: Sharing, num_workers: int, rows: Rows = (), num_layers: int | None = None) -> int:
    """How many stages to make on so many workers, of so many layers if that is known.

    Refuses layers that are fewer than the stages of any placement, since no number of stages would do.
    """
    num_parts = 1 if sharing is Sharing.ROWS else _PARTS[sharing]
    least = sum(map(len, rows)) if sharing is Sharing.ROWS else num_parts * (2 if sharing is Sharing.ROUND else 1)
    count = least if sharing is Sharing.ROWS else max(least, num_parts * num_workers)
    if not num_layers or sharing is Sharing.ANY:
        return count
    if num_layers < least:
        raise LayersError(
            ErrorCode.INVALID_PLAN,
            f"the schedule needs {least} stages{'' if sharing is Sharing.ROWS else ' or more'} ({sharing.value}), and "
            f"the model has {num_layers} layer{'s' if num_layers > 1 else ''}",
            advice="Use another schedule, such as 1F1B.",
        )
    return min(count, num_layers // num_parts * num_parts)


def homes(sharing: Sharing, num_stages: int, num_workers: int, rows: Rows = ()) -> tuple[int, ...]:
    """The worker of each stage, counted from 0; more workers than `num_workers` means that the rest must still come.

    A single worker is no pipeline, so round robin uses two or more: the most that hold equally many stages, two at
    least.
    """
    if sharing is Sharing.ROWS:
        _check_rows(num_stages, rows)
        row_of = {stage: row for row, stages in enumerate(rows) for stage in stages}
        return tuple(row_of[stage] for stage in range(num_stages))
    if sharing is Sharing.ROUND:
        divisors = [count for count in range(2, num_stages // 2 + 1) if num_stages % count == 0]
        if not divisors:
            raise _refusal(
                f"{num_stages} stages cannot be shared out evenly, two or more on each of two or more workers",
                "Make 4, 6, 8 or another multiple of the number of workers of them: num_stages=, or one boundary less.",
            )
        count = max((each for each in divisors if each <= num_workers), default=divisors[0])
        return tuple(stage % count for stage in range(num_stages))
    if sharing is Sharing.V:
        if num_stages % 2:
            text = f"{num_stages} stages cannot be two on each worker"
            raise _refusal(text, "Make twice as many as there are workers: num_stages=, or one boundary less.")
        return tuple(min(stage, num_stages - 1 - stage) for stage in range(num_stages))
    return tuple(range(num_stages))


def place_of(sharing: Sharing, held: Sequence[int], num_stages: int, rows: Rows = ()) -> tuple[int, int]:
    """Which worker this is, of how many, by the stages that it holds, ascending; a set that does not fit is refused."""
    first, num_parts = held[0], len(held)
    num_workers = num_stages // num_parts
    match sharing:
        case Sharing.ROWS:
            _check_rows(num_stages, rows)
            num_workers, fits = len(rows), tuple(held) in rows
            first = rows.index(tuple(held)) if fits else first
        case Sharing.V:
            fits = num_stages % 2 == 0 and list(held) == [first, num_stages - 1 - first]
        case Sharing.ROUND:
            fits = num_stages % num_parts == 0 and list(held) == list(range(first, num_stages, num_workers))
        case _:
            fits = True
    if not fits:
        raise _refusal(
            f"a worker holds stages {list(held)} of {num_stages}, but with this schedule {sharing.value}",
            "Leave placement out, or name one worker for the stages that belong together.",
        )
    return first, num_workers


def check_all(sharing: Sharing, stages_per_worker: Sequence[Sequence[int]], rows: Rows = ()) -> None:
    """Refuses what does not fit together, though each worker by itself may."""
    num_stages = sum(map(len, stages_per_worker))
    counts = {place_of(sharing, sorted(held), num_stages, rows)[1] for held in stages_per_worker}
    if sharing is not Sharing.ANY and len(counts) > 1:
        raise _refusal(
            f"the workers hold {[len(held) for held in stages_per_worker]} stages, but with this schedule "
            f"{sharing.value}",
            "Give each worker equally many stages.",
        )


def _check_rows(num_stages: int, rows: Rows) -> None:
    num_written = sum(map(len, rows))
    if num_stages != num_written:
        raise _refusal(
            f"the model has {num_stages} stages, and the schedule file is for {num_written}",
            "Leave num_stages out, and give as many boundaries or marks as the file needs.",
        )


def _refusal(message: str, advice: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_PLAN, message, advice=advice)
