"""Between which stages something goes for every micro-batch, and for every step.

A list of layers is a chain: each stage hears from its neighbours. A module that is cut by replay has skips, so a value
goes straight from the stage that makes it to each that uses it, and gradients come back over the users (`core.flow`).
Who waits for whom is asked by the interpreter, by the feeder, and by the coordinator, which looks whether the workers
reach each other; so it is said once, here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipesvc.core.flow import Flow, gradient_transfers, transfers
from pipesvc.core.plan import Plan
from pipesvc.core.ties import Names, Pair, gradient_chain

Stages = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """The edges of one run. Stages are given in ascending order."""

    num_stages: int
    forwards: tuple[Pair, ...]  # producer and consumer of activations
    backwards: tuple[Pair, ...]  # sender and receiver of gradients
    input_readers: Stages  # the stages to which the feeder sends inputs
    label_readers: Stages
    # (owner, holder) -> tied parameters whose new value goes that way once a step (`core.ties`)
    weights: Mapping[Pair, Names] = field(default_factory=dict)
    decides: bool  # every stage reports to stage 0, which answers every stage

    def activations(self, stage: int) -> Stages:
        """The stages whose activations this one needs for its forward."""
        return _firsts(self.forwards, stage)

    def consumers(self, stage: int) -> Stages:
        """The stages to which this one sends activations."""
        return _seconds(self.forwards, stage)

    def gradient_senders(self, stage: int) -> Stages:
        """The stages whose gradients this one needs for its backward."""
        return _firsts(self.backwards, stage)

    def gradient_receivers(self, stage: int) -> Stages:
        """The stages to which this one sends gradients."""
        return _seconds(self.backwards, stage)

    def weight_owners(self, stage: int) -> Stages:
        """The stages whose new values this one needs for its update."""
        return _firsts(tuple(self.weights), stage)

    def weight_holders(self, stage: int) -> Stages:
        """The stages to which this one sends new values."""
        return _seconds(tuple(self.weights), stage)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """(sender, receiver) of everything that goes from a stage to another one, each once."""
        norms = [pair for stage in range(1, self.num_stages) for pair in ((stage, 0), (0, stage))]
        return tuple(dict.fromkeys([*self.forwards, *self.backwards, *self.weights, *(norms if self.decides else ())]))


def make_edges(
    num_stages: int, *, flow: Flow | None = None, ends: Sequence[int] = (), has_labels: bool, decides: bool
) -> Edges:
    """Those of a chain, or of a flow whose stages end at `ends`.

    Inputs go to stage 0 of a chain. Every stage of a flow runs the whole forward, and needs of inputs that it does not
    read at least the shapes.
    """
    if flow is None:
        forwards = tuple((stage, stage + 1) for stage in range(num_stages - 1))
        backwards = tuple((later, earlier) for earlier, later in forwards)
    else:
        forwards, backwards = tuple(transfers(flow, ends)), tuple(gradient_transfers(flow, ends))
    return Edges(
        num_stages=num_stages,
        forwards=forwards,
        backwards=backwards,
        input_readers=(0,) if flow is None else tuple(range(num_stages)),
        label_readers=(num_stages - 1,) if has_labels else (),
        decides=decides,
    )


def edges_of(plan: Plan, *, has_labels: bool, decides: bool) -> Edges:
    """Updates wait for one another in ascending order of stages, which is that of each worker's list, or are passed
    over by what others wait for; so the dry run of a plan stays as it is here, too."""
    edges = make_edges(plan.num_stages, flow=plan.flow, ends=plan.ends, has_labels=has_labels, decides=decides)
    backwards = tuple(dict.fromkeys([*edges.backwards, *gradient_chain(plan.ties)]))
    return replace(edges, backwards=backwards, weights=plan.weight_transfers)


def _firsts(pairs: Sequence[Pair], second: int) -> Stages:
    return tuple(sorted(one for one, other in pairs if other == second))


def _seconds(pairs: Sequence[Pair], first: int) -> Stages:
    return tuple(sorted(other for one, other in pairs if one == first))
