"""Parameters that several stages use: who owns each, and what goes between the owner and the others.

Every stage needs the values to compute, but a weight that several optimizers update drifts apart, and one that several
stages count spoils the norm. So the first stage that uses it owns it: gradients come down the users to the owner, in
the order in which one process adds (`core.flow.gradient_transfers`), and it alone updates, saves and counts. Once a
step its new value goes to the other holders. Stages on one device of one worker hold one tensor, and nothing need go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipesvc.core.flow import Flow, shared_parameters, stage_of
from pipesvc.core.layer_info import SharedParameter

Pair = tuple[int, int]
Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tie:
    """One parameter that several stages hold."""

    name: str  # its first in the unsplit model
    stages: tuple[int, ...]  # ascending; the first one is the owner
    num_bytes: int
    is_trained: bool

    @property
    def owner(self) -> int:
        return self.stages[0]


def ties_of_flow(flow: Flow, ends: Sequence[int]) -> tuple[Tie, ...]:
    users = shared_parameters(flow, ends)
    return tuple(_tie(each, users[each.name]) for each in flow.shared if each.name in users)


def ties_of_layers(shared: Sequence[Sequence[SharedParameter]], ends: Sequence[int]) -> tuple[Tie, ...]:
    """`shared` has what each layer of a list shares with others; stages end at `ends`, exclusive."""
    holders: dict[SharedParameter, list[int]] = {}
    for index, held in enumerate(shared):
        for each in held:
            holders.setdefault(each, []).append(index)
    stages = {each: sorted({stage_of(ends, index) for index in indices}) for each, indices in holders.items()}
    return tuple(_tie(each, held) for each, held in stages.items() if len(held) > 1)


def gradient_chain(ties: Sequence[Tie]) -> dict[Pair, Names]:
    """(sender stage, receiver stage) -> the parameters whose gradient goes that way for each micro-batch."""
    return _grouped([(pair, tie) for tie in ties for pair in _downwards(tie)])


def weight_transfers(ties: Sequence[Tie], places: Sequence[object]) -> dict[Pair, Names]:
    """(owner, holder) -> the parameters whose new value goes that way once a step.

    `places` is by stage; of those that hold one tensor, only the first is sent to.
    """
    found = []
    for tie in ties:
        firsts: dict[object, int] = {}
        for stage in tie.stages:
            firsts.setdefault(places[stage], stage)
        found += [((tie.owner, stage), tie) for stage in firsts.values() if stage != tie.owner]
    return _grouped(found)


def copies_in(ties: Sequence[Tie], stage: int) -> list[Tie]:
    """Those of which this stage holds a copy that another one owns."""
    return [tie for tie in ties if stage in tie.stages[1:]]


def copy_bytes(ties: Sequence[Tie], stage: int) -> int:
    """What the copies of this stage add to its layers, of which a shared parameter is counted at the first."""
    return sum(tie.num_bytes for tie in copies_in(ties, stage))


def copy_gradient_bytes(ties: Sequence[Tie], stage: int) -> int:
    return sum(tie.num_bytes for tie in copies_in(ties, stage) if tie.is_trained)


def _tie(shared: SharedParameter, stages: Sequence[int]) -> Tie:
    return Tie(name=shared.name, stages=tuple(stages), num_bytes=shared.num_bytes, is_trained=shared.is_trained)


def _downwards(tie: Tie) -> list[Pair]:
    return [(later, earlier) for earlier, later in pairwise(tie.stages)]


def _grouped(pairs: Sequence[tuple[Pair, Tie]]) -> dict[Pair, Names]:
    """Of the trained ones: a frozen parameter is equal everywhere from the start."""
    found: dict[Pair, list[str]] = {}
    for pair, tie in pairs:
        if tie.is_trained:
            found.setdefault(pair, []).append(tie.name)
    return {pair: tuple(names) for pair, names in sorted(found.items())}
