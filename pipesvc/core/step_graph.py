"""The lists of a step as one graph over integers: what must have been taken and what must have come before each action.

Asked anew for every action at every moment, "may this run?" costs far more than playing the run. But the answer hangs
on other actions alone, so it is worked out once: every action gets an index, and a count of the others it waits for.

Two relations make the graph. What an action needs is told by `actions.needs`, asked once for each kind on each stage,
because the answer is the same for every micro-batch. What it may not overtake on its own stage is told by
`choice.choose`, asked once for each pair of kinds. Within one worker both mean the same: another action must have been
taken from the list. From another worker comes a parcel, which takes time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from pipesvc.core.actions import PER_MICRO_BATCH, Action, ActionKind, Result, ResultKind, needs, results
from pipesvc.core.costs import LinkCost
from pipesvc.core.overtaking import any_action, followed
from pipesvc.core.stage_costs import StageCost

# How many more micro-batches are alive on a stage once an action of this kind has been taken.
_LIVE_CHANGE: Final = {ActionKind.FORWARD: 1, ActionKind.BACKWARD: -1, ActionKind.WEIGHT_BACKWARD: -1}

# Where an action or a result that the lists do not have would be; who waits for it waits for ever.
ABSENT: Final = -1

LinkOf: TypeAlias = Callable[[str, str], LinkCost]  # sender, receiver


# Who waits for the parcel, and the fields of its `Route`: one plain tuple, which the simulator unpacks for each parcel.
Send: TypeAlias = tuple[int, int, float, float]


class Route(NamedTuple):
    """How parcels of one kind get from a stage to a stage on another worker."""

    link: int  # index in StepGraph.links
    transfer_s: float  # the link is busy; parcels of one link are sent one after the other
    latency_s: float  # and then on their way


@dataclass(slots=True)
class StepGraph:
    """Actions are numbered worker by worker, in the order of their lists. What is not said otherwise is by action."""

    actions: list[Action]
    stage: list[int] = field(init=False)
    worker: list[int] = field(init=False)
    duration_s: list[float] = field(init=False)
    live_change: list[int] = field(init=False)
    missing: list[int] = field(init=False)  # actions of its worker that must be taken before this one
    awaited: list[int] = field(init=False)  # parcels that must have come
    after: list[tuple[int, ...]] = field(init=False)  # those in whose `missing` it is counted
    sends: list[tuple[Send, ...]] = field(init=False)  # to those in whose `awaited` it is
    links: list[tuple[str, str]] = field(default_factory=list)  # sender and receiver
    link_bytes: list[int] = field(default_factory=list)  # per link, in one step
    busy_s: list[float] = field(default_factory=list)  # per stage

    def __post_init__(self) -> None:
        num_actions = len(self.actions)
        self.stage, self.worker, self.live_change = [0] * num_actions, [0] * num_actions, [0] * num_actions
        self.duration_s, self.missing, self.awaited = [0.0] * num_actions, [0] * num_actions, [0] * num_actions
        self.after, self.sends = [()] * num_actions, [()] * num_actions

    def wait_for_taken(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Of each pair, the second waits until the first has been taken from their list."""
        after, missing = self.after, self.missing
        for before, index in pairs:
            if index != ABSENT:
                missing[index] += 1
                if before != ABSENT:
                    after[before] += (index,)

    def wait_for_parcels(self, pairs: Iterable[tuple[int, int]], route: Route, num_bytes: int) -> None:
        """Of each pair, the second waits for what the first sends."""
        sends, awaited = self.sends, self.awaited
        link, transfer_s, latency_s = route
        for before, index in pairs:
            if index != ABSENT:
                awaited[index] += 1
                if before != ABSENT:
                    sends[before] += ((index, link, transfer_s, latency_s),)
                    self.link_bytes[link] += num_bytes


def build(
    lists: Sequence[Sequence[Action]], stages: Sequence[StageCost], link: LinkOf, *, num_micro_batches: int, clips: bool
) -> StepGraph:
    """The graph of these workers' lists."""
    builder = _Builder(lists, stages, link, num_micro_batches, clips)
    for stage, kind in builder.indices:
        builder.connect_needs(stage, kind)
        builder.connect_order(stage, kind)
    return builder.graph


class _Builder:
    """Groups of actions of one stage and kind, from which the graph grows group by group."""

    def __init__(
        self,
        lists: Sequence[Sequence[Action]],
        stages: Sequence[StageCost],
        link: LinkOf,
        num_micro_batches: int,
        clips: bool,
    ) -> None:
        self._stages, self._link = stages, link
        self._num_micro_batches, self._clips = num_micro_batches, clips
        self.graph = StepGraph([action for actions in lists for action in actions])
        self.graph.busy_s = [0.0] * len(stages)
        # In the order of the list, and by micro-batch; what happens once a step is at 0.
        self.indices: dict[tuple[int, ActionKind], list[int]] = defaultdict(list)
        self._at: dict[tuple[int, ActionKind], list[int]] = {}
        self._made: dict[tuple[int, ResultKind], list[int]] = {}
        self._link_index: dict[tuple[str, str], int] = {}
        for index, action in enumerate(self.graph.actions):
            self.indices[action.stage, action.kind].append(index)
        first = 0
        for worker, actions in enumerate(lists):
            self.graph.worker[first : first + len(actions)] = [worker] * len(actions)
            first += len(actions)
        for stage, kind in self.indices:
            self._describe(stage, kind)

    def _describe(self, stage: int, kind: ActionKind) -> None:
        graph, indices = self.graph, self.indices[stage, kind]
        seconds, change = self._stages[stage].seconds(kind), _LIVE_CHANGE.get(kind, 0)
        graph.busy_s[stage] += seconds * len(indices)
        at = [ABSENT] * (self._num_micro_batches if kind in PER_MICRO_BATCH else 1)
        for index in indices:
            graph.stage[index] = stage
            graph.duration_s[index] = seconds
            graph.live_change[index] = change
            at[graph.actions[index].micro_batch or 0] = index
        self._at[stage, kind] = at
        for result in results(any_action(stage, kind)):
            others = self._made.get((stage, result.kind), at)
            self._made[stage, result.kind] = at if others is at else list(map(max, at, others))

    def connect_needs(self, stage: int, kind: ActionKind) -> None:
        """What `needs` says of one micro-batch holds for all."""
        at = self._at[stage, kind]
        wanted: dict[tuple[int, ResultKind], list[int]] = {}
        for need in self._needs(stage, kind):
            wanted.setdefault((need.stage, need.kind), []).append(need.micro_batch or 0)
        for (other, result_kind), micro_batches in wanted.items():
            made = self._made.get((other, result_kind), [ABSENT] * self._num_micro_batches)
            if kind not in PER_MICRO_BATCH:
                made = self._last_of_each_kind([made[micro_batch] for micro_batch in micro_batches])
            pairs = zip(made, at if kind in PER_MICRO_BATCH else at * len(made), strict=True)
            if self._stages[other].worker == self._stages[stage].worker:
                self.graph.wait_for_taken(pairs)
            else:
                num_bytes = self._parcel_bytes(other, result_kind)
                self.graph.wait_for_parcels(pairs, self._route(other, stage, num_bytes), num_bytes)

    def connect_order(self, stage: int, kind: ActionKind) -> None:
        """Of a kind that is always followed, the nearest earlier one stands for all before it, which it follows too."""
        indices = self.indices[stage, kind]
        for other in followed()[kind].always:
            if other is kind:
                self.graph.wait_for_taken(pairwise(indices))
            elif (stage, other) in self.indices:
                self.graph.wait_for_taken(_nearest_earlier(self.indices[stage, other], indices))
        for other in followed()[kind].in_same_micro_batch:
            if (stage, other) in self._at and not self._needs_result(stage, kind, other):
                pairs = zip(self._at[stage, other], self._at[stage, kind], strict=True)
                self.graph.wait_for_taken(pair for pair in pairs if ABSENT < pair[0] < pair[1])

    def _needs(self, stage: int, kind: ActionKind) -> tuple[Result, ...]:
        return needs(
            any_action(stage, kind),
            num_stages=len(self._stages),
            num_micro_batches=self._num_micro_batches,
            clips=self._clips,
        )

    def _needs_result(self, stage: int, kind: ActionKind, other: ActionKind) -> bool:
        """Then it waits for the other anyway."""
        return not set(self._needs(stage, kind)).isdisjoint(results(any_action(stage, other)))

    def _last_of_each_kind(self, indices: Iterable[int]) -> list[int]:
        """Actions of one kind are taken in order, so the last stands for all."""
        actions = self.graph.actions
        last = {None if index == ABSENT else actions[index].kind: index for index in sorted(indices)}
        return list(last.values())

    def _parcel_bytes(self, producer: int, kind: ResultKind) -> int:
        """Norms and scale are a few bytes; what they cost is latency."""
        match kind:
            case ResultKind.OUTPUT:
                return self._stages[producer].output_bytes
            case ResultKind.INPUT_GRADIENT:
                return self._stages[producer - 1].output_gradient_bytes
            case _:
                return 0

    def _route(self, producer: int, consumer: int, num_bytes: int) -> Route:
        workers = self._stages[producer].worker, self._stages[consumer].worker
        cost = self._link(*workers)
        if workers not in self._link_index:
            self._link_index[workers] = len(self.graph.links)
            self.graph.links.append(workers)
            self.graph.link_bytes.append(0)
        return Route(self._link_index[workers], num_bytes / cost.bytes_per_s, cost.latency_s)


def _nearest_earlier(others: Sequence[int], indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of an index and the last of `others` before it, where that is not the pair of the index before it, too."""
    if others[0] > indices[-1]:
        return
    last = ABSENT
    for index in indices:
        position = bisect_left(others, index)
        if position and others[position - 1] != last:
            last = others[position - 1]
            yield last, index
