"""What a device must hold, as a sum that can be shown.

A plan that forgets one term (the optimizer's state, the slots of links) fits on paper and dies in the first step, and
"does not fit" without the terms helps nobody. So memory is never one number: it is a value with its parts, which says
the sum in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pipesvc.core.stage_costs import StageCost, gradients_between, outputs_between
from pipesvc.core.ties import Pair
from pipesvc.errors import ErrorCode, LayersError

_UNITS: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))

# A receiver lets a sender run at least so many parcels ahead, whatever the schedule.
MIN_WINDOW_PARCELS: Final = 2


class Held(NamedTuple):
    """So many pieces of so many bytes each."""

    num_pieces: int
    each_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The most that is held at once, in bytes, by its parts. `a + b` is what one device needs for both."""

    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    buffer_bytes: int = 0
    activations: tuple[Held, ...] = ()  # per stage: micro-batches in flight, and what one of them keeps
    link_slots: tuple[Held, ...] = ()  # per incoming link: parcels in its window, and the size of one
    snapshot_bytes: int = 0  # copies of the state that are being shipped

    @property
    def model_bytes(self) -> int:
        """What is held whatever the micro-batches are."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes + self.snapshot_bytes

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + _total(self.activations) + _total(self.link_slots)

    def fits(self, limit_bytes: int) -> bool:
        """A limit of 0 is none."""
        return limit_bytes == 0 or self.total_bytes <= limit_bytes

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            weight_bytes=self.weight_bytes + other.weight_bytes,
            gradient_bytes=self.gradient_bytes + other.gradient_bytes,
            optimizer_bytes=self.optimizer_bytes + other.optimizer_bytes,
            buffer_bytes=self.buffer_bytes + other.buffer_bytes,
            activations=self.activations + other.activations,
            link_slots=self.link_slots + other.link_slots,
            snapshot_bytes=self.snapshot_bytes + other.snapshot_bytes,
        )

    def text(self, limit_bytes: int = 0) -> str:
        """`4.0 GiB weights + 3 x 0.5 GiB activations = 5.5 GiB of 4.0 GiB`; parts that are nothing are left out."""
        parts = [
            *_whole(self.weight_bytes, "weights"),
            *_whole(self.gradient_bytes, "gradients"),
            *_whole(self.optimizer_bytes, "optimizer state"),
            *_whole(self.buffer_bytes, "buffers"),
            *_multiples(self.activations, "activations"),
            *_multiples(self.link_slots, "link slots"),
            *_whole(self.snapshot_bytes, "snapshot copies"),
        ]
        return f"{' + '.join(parts) or 'nothing'} = {against_text(self.total_bytes, limit_bytes)}"


def bytes_text(num_bytes: int, digits: int = 1) -> str:
    """In the largest unit of which there is at least a tenth."""
    for unit, size in _UNITS:
        if num_bytes * 10 >= size:
            return f"{num_bytes / size:.{digits}f} {unit}"
    return f"{num_bytes} bytes"


def against_text(num_bytes: int, limit_bytes: int) -> str:
    """`17.6 GiB of 16.0 GiB`, with as many digits as it takes to tell them apart; without a limit, `17.6 GiB`."""
    if not limit_bytes:
        return bytes_text(num_bytes)
    for digits in range(1, 10):
        texts = bytes_text(num_bytes, digits), bytes_text(limit_bytes, digits)
        if num_bytes == limit_bytes or texts[0] != texts[1]:
            break
    return " of ".join(texts)


def device_memory(stages: Sequence[StageCost], bounds: Mapping[int, int]) -> dict[str, Memory]:
    """What each place (`worker/device`) must hold for its stages.

    `bounds` has the most micro-batches in flight per stage, which executors keep to whatever the times are. A link from
    another worker holds what may come of the micro-batches alive at its sender (outputs), or here (gradients). The
    feeder's parcels (inputs and labels) are not counted: costs do not name their size. Activations are those that were
    measured, without recompute; a stage that recomputes holds less.
    """
    found: dict[str, Memory] = {}
    outputs, gradients = outputs_between(stages), gradients_between(stages)
    for index, stage in enumerate(stages):
        found[stage.place] = found.get(stage.place, Memory()) + Memory(
            weight_bytes=stage.weight_bytes,
            gradient_bytes=stage.gradient_bytes,
            optimizer_bytes=stage.optimizer_bytes,
            buffer_bytes=stage.buffer_bytes,
            activations=(Held(bounds[index], stage.activation_bytes),),
            link_slots=(
                *_slots(stages, index, outputs, bounds),
                *_slots(stages, index, gradients, dict.fromkeys(range(len(stages)), bounds[index])),
            ),
        )
    return found


def too_small(stages: Sequence[StageCost], memory: Mapping[str, Memory]) -> dict[str, int]:
    """The places that hold less than they must, each with its limit."""
    limits = {stage.place: stage.memory_bytes for stage in stages}
    return {place: limits[place] for place, needed in memory.items() if not needed.fits(limits[place])}


def check_memory(stages: Sequence[StageCost], memory: Mapping[str, Memory]) -> None:
    """Refuses what does not fit, with the sum of each place."""
    limits = too_small(stages, memory)
    if limits:
        sums = "; ".join(f"{place} would need {memory[place].text(limit)}" for place, limit in limits.items())
        is_model_too_large = any(memory[place].model_bytes > limit for place, limit in limits.items())
        raise LayersError(
            ErrorCode.INVALID_PLAN,
            f"the plan does not fit: {sums}",
            advice="Put fewer layers there, or place them on a worker with more memory."
            if is_model_too_large
            else "Put fewer layers there, use more and smaller micro-batches, or fewer in flight.",
        )


def slot_parcels(num_alive: int) -> int:
    """Parcels that a link's receiver may have to hold, of so many micro-batches alive."""
    return max(MIN_WINDOW_PARCELS, num_alive)


def _slots(
    stages: Sequence[StageCost], receiver: int, sizes: Mapping[Pair, int], alive: Mapping[int, int]
) -> Iterator[Held]:
    """One for each link from another worker to this stage; `alive` has the micro-batches that may come, by sender."""
    for (sender, other), num_bytes in sizes.items():
        if other == receiver and stages[sender].worker != stages[receiver].worker:
            yield Held(slot_parcels(alive[sender]), num_bytes)


def _total(pieces: Iterable[Held]) -> int:
    return sum(num_pieces * each_bytes for num_pieces, each_bytes in pieces)


def _whole(num_bytes: int, what: str) -> list[str]:
    return [f"{bytes_text(num_bytes)} {what}"] if num_bytes else []


def _multiples(pieces: Iterable[Held], what: str) -> list[str]:
    """Pieces of one size are counted together."""
    totals: dict[int, int] = {}
    for num_pieces, each_bytes in pieces:
        if num_pieces and each_bytes:
            totals[each_bytes] = totals.get(each_bytes, 0) + num_pieces
    return [f"{num_pieces} x {bytes_text(each_bytes)} {what}" for each_bytes, num_pieces in totals.items()]
