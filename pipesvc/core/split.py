"""How a mini-batch is cut into micro-batches and how much each of them counts.

Rows weigh, not micro-batches: with 5 rows as 3 and 2, the mean of the two means is not the mean of the five. Feeder,
planner and the tests' single-process loop all take their numbers from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipesvc.errors import ErrorCode, PipesvcError


def micro_batch_rows(num_rows: int, num_micro_batches: int) -> tuple[int, ...]:
    """Rows of each micro-batch, as equal as can be, larger ones first. A short batch has one micro-batch per row."""
    if num_rows < 1 or num_micro_batches < 1:
        raise PipesvcError(
            ErrorCode.INVALID_JOB, f"a batch of {num_rows} rows cannot be cut into {num_micro_batches} micro-batches"
        )
    count = min(num_micro_batches, num_rows)
    least, num_larger = divmod(num_rows, count)
    return tuple(least + (index < num_larger) for index in range(count))


def check_batch_size(batch_size: int, num_micro_batches: int) -> None:
    """Refuses a full batch that has fewer rows than micro-batches; only a last short batch may use fewer."""
    if batch_size < num_micro_batches:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"a batch of {batch_size} rows cannot be cut into {num_micro_batches} micro-batches",
            advice=f"Use micro_batches={max(batch_size, 1)} or fewer, or batch_size={num_micro_batches} or more.",
        )


def shares(weights: Sequence[float]) -> tuple[float, ...]:
    """The part of each micro-batch in the mini-batch's loss: its weight by the sum, added in ascending order."""
    total = 0.0
    for weight in weights:
        if not math.isfinite(weight) or weight < 0:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"the weights of the micro-batches are {list(weights)}",
                advice="The weight function must give a finite number of 0 or more for each row.",
            )
        total += float(weight)
    if not math.isfinite(total) or total <= 0:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the weights of a batch sum to {total}",
            advice="Each batch needs at least one row with a weight above 0.",
        )
    return tuple(float(weight) / total for weight in weights)
