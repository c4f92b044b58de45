"""From a step that was read to one that can be announced and sent: the job's part in it, bound once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipesvc.errors import PipesvcError, Where
from pipesvc.worker.feeder.batches import CutStep, RawStep, cut_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """`weight` is None where every row weighs the same."""

    num_micro_batches: int  # of a mini-batch
    weight: Callable[[Any], Any] | None
    where: Where
    may_count_nothing: bool = False

    def __call__(self, raw: RawStep) -> CutStep:
        try:
            return cut_step(
                raw, self.num_micro_batches, self.weight, self.where, may_count_nothing=self.may_count_nothing
            )
        except PipesvcError as error:
            raise error.at(self.where) from error.__cause__
