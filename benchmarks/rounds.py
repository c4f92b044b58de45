"""From the times of single turns to a figure: who runs when, how fast that was, and whether all did the same work.

A machine's speed drifts, by clock, by neighbours, within minutes. So contenders are measured in rounds, each running
once a round, and compared within a round; the order is reversed every other round, so that no one always runs first.
What is reported is the median over rounds, with the lowest and the highest beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypeVar

T = TypeVar("T")

# Losses of the first steps must agree within this, relative to the single process. float32 has 1.2e-7, and a loss is
# the mean of thousands of terms; a wrong gradient, share or cut changes the second loss by more than 1e-3.
NUM_COMPARED_STEPS: Final = 3
LOSS_TOLERANCE: Final = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One contender's run in one round. A step ends when its last stage to do so has updated its weights."""

    step_ends_ns: tuple[int, ...]
    losses: tuple[float, ...]
    num_warm_up_steps: int

    def __post_init__(self) -> None:
        if len(self.step_ends_ns) != len(self.losses):
            raise ValueError(f"{len(self.step_ends_ns)} times and {len(self.losses)} losses")
        if not 1 <= self.num_warm_up_steps < len(self.losses):
            raise ValueError(f"{self.num_warm_up_steps} of {len(self.losses)} steps warm up")

    @property
    def step_s(self) -> float:
        """Over the timed steps as a whole: where steps overlap, the time of a single one says little."""
        taken_ns = self.step_ends_ns[-1] - self.step_ends_ns[self.num_warm_up_steps - 1]
        return taken_ns / 1e9 / (len(self.losses) - self.num_warm_up_steps)

    def tokens_per_s(self, num_tokens: int) -> float:
        return num_tokens / self.step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The median of the rounds, with the lowest and the highest."""

    median: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median=median(values), lowest=min(values), highest=max(values))


def order(contenders: Sequence[T], round_index: int) -> list[T]:
    return list(contenders) if round_index % 2 == 0 else list(reversed(contenders))


def ratios(values: Sequence[float], against: Sequence[float]) -> list[float]:
    """Round by round."""
    return [value / other for value, other in zip(values, against, strict=True)]


def largest_loss_difference(turns: Mapping[str, Sequence[Turn]], truth: str) -> tuple[float, str]:
    """Over all turns and the first steps, relative to the truth's first turn; and whose it is."""
    true_losses = turns[truth][0].losses
    return max(
        (_difference(turn.losses[step], true_losses[step]), name)
        for name, own in turns.items()
        for turn in own
        for step in range(NUM_COMPARED_STEPS)
    )


def _difference(loss: float, true_loss: float) -> float:
    """A loss that is no number agrees with nothing."""
    difference = abs(loss - true_loss) / abs(true_loss)
    return math.inf if math.isnan(difference) else difference
