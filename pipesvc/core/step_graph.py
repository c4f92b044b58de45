"""The lists of a step as one graph over integers: what must have been taken and what must have come before each action.

Asked anew for every action at every moment, "may this run?" costs far more than playing the run. But the answer hangs
on other actions alone, so it is worked out once: every action gets an index, and a count of the others it waits for.

Two relations make the graph. What an action needs is told by `actions.needs`, asked once for each kind on each stage,
because the answer is the same for every micro-batch. What it may not overtake on its own stage is told by
`choice.choose`, asked once for each pair of kinds. Within one worker both mean the same: another action must have been
taken from the list. From another worker comes a parcel, which takes time.

Both are told of groups, the actions of one stage and kind, and then worked out for all micro-batches of all groups at
once, as arrays.

Legend: R rows of the table of actions, m micro-batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesvc.core.actions import PER_MICRO_BATCH, Action, ActionKind, Result, ResultKind, needs, results
from pipesvc.core.costs import LinkCost
from pipesvc.core.overtaking import any_action, followed
from pipesvc.core.stage_costs import StageCost

# How many more micro-batches are alive on a stage once an action of this kind has been taken.
_LIVE_CHANGE: Final = {ActionKind.FORWARD: 1, ActionKind.BACKWARD: -1, ActionKind.WEIGHT_BACKWARD: -1}
_LIVE_CHANGES: Final = np.array([_LIVE_CHANGE.get(kind, 0) for kind in ActionKind])
_NUMBERS: Final = {kind: number for number, kind in enumerate(ActionKind)}

# Where an action or a result that the lists do not have would be; who waits for it waits for ever.
ABSENT: Final = -1

LinkOf: TypeAlias = Callable[[str, str], LinkCost]  # sender, receiver
IndexArray: TypeAlias = npt.NDArray[np.intp]


class Arcs(NamedTuple):
    """Pairs of actions by the first of each: the seconds of action i are `second[begin[i] : begin[i + 1]]`."""

    begin: list[int]
    second: list[int]


class Route(NamedTuple):
    """How parcels of one kind get from a stage to a stage on another worker."""

    link: int  # index in StepGraph.links
    transfer_s: float  # the link is busy; parcels of one link are sent one after the other
    latency_s: float  # and then on their way
    num_bytes: int  # of each


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGraph:
    """Actions are numbered worker by worker, in the order of their lists. What is not said otherwise is by action.

    The simulator counts `missing` and `awaited` down.
    """

    actions: list[Action]
    stage: list[int]
    worker: list[int]
    duration_s: list[float]
    live_change: list[int]
    missing: list[int]  # actions of its worker that must be taken before this one
    awaited: list[int]  # parcels that must have come
    num_ready: list[int]  # per worker: the actions that wait for no other
    after: Arcs  # to those in whose `missing` it is counted
    sends: Arcs  # to those in whose `awaited` it is
    routes: list[Route]  # of each of the `sends`
    links: list[tuple[str, str]]  # sender and receiver
    link_bytes: list[int]  # per link, in one step
    busy_s: list[float]  # per stage


def build(
    lists: Sequence[Sequence[Action]], stages: Sequence[StageCost], link: LinkOf, *, num_micro_batches: int, clips: bool
) -> StepGraph:
    """The graph of these workers' lists."""
    builder = _Builder(lists, stages, link, num_micro_batches)
    for stage, kind in builder.groups:
        needed = needs(any_action(stage, kind), num_stages=len(stages), num_micro_batches=1, clips=clips)
        builder.connect_needs(stage, kind, needed)
        builder.connect_order(stage, kind, needed)
    return builder.graph()


class _Builder:
    """Collects what groups wait for, as pairs of rows of one table, and makes the graph of it."""

    def __init__(
        self, lists: Sequence[Sequence[Action]], stages: Sequence[StageCost], link: LinkOf, num_micro_batches: int
    ) -> None:
        self._stages, self._link, self._num_workers = stages, link, len(lists)
        self._actions = [action for actions in lists for action in actions]
        self._stage = [action.stage for action in self._actions]
        self._kind = np.array([_NUMBERS[action.kind] for action in self._actions], np.intp)
        self._worker = np.repeat(np.arange(len(lists)), list(map(len, lists)))
        self._row = np.array(self._stage, np.intp) * len(_NUMBERS) + self._kind
        self._sorted = np.argsort(self._row, kind="stable")
        self.groups = self._grouped()
        self._table, self._made = self._tabled(num_micro_batches)
        # Pairs of rows, the second of which waits for the first, and of single actions.
        self._taken: list[tuple[int, int]] = []
        self._taken_if_earlier: list[tuple[int, int]] = []
        self._sent: list[tuple[int, int]] = []
        self._routes: list[Route] = []  # of `_sent`
        self._single: list[tuple[int, int]] = []
        self._links: dict[tuple[str, str], int] = {}

    def _grouped(self) -> dict[tuple[int, ActionKind], list[int]]:
        """Actions of one stage and kind, in the order of their list."""
        indices = self._sorted.tolist()
        begins = np.unique(self._row[self._sorted], return_index=True)[1].tolist()
        groups = sorted(indices[begin:end] for begin, end in pairwise([*begins, len(indices)]))
        firsts = (self._actions[group[0]] for group in groups)
        return {(first.stage, first.kind): group for first, group in zip(firsts, groups, strict=True)}

    def _tabled(self, num_micro_batches: int) -> tuple[IndexArray, dict[tuple[int, ResultKind], int]]:
        """[R, m] Actions by row and micro-batch, what happens once a step at 0; and the rows of those that make what.

        The last row, which is at ABSENT, has no action.
        """
        table = np.full((len(self._stages) * len(_NUMBERS), num_micro_batches), ABSENT)
        table[self._row, [action.micro_batch or 0 for action in self._actions]] = np.arange(len(self._actions))
        made: dict[tuple[int, ResultKind], int] = {}
        for stage, kind in self.groups:
            for result in results(any_action(stage, kind)):
                row, other = _row(stage, kind), made.get((stage, result.kind))
                if other is not None:
                    table = np.vstack([table, np.maximum(table[other], table[row])])
                    row = len(table) - 1
                made[stage, result.kind] = row
        return np.vstack([table, np.full(num_micro_batches, ABSENT)]), made

    def connect_needs(self, stage: int, kind: ActionKind, needed: Sequence[Result]) -> None:
        """What is needed of the first micro-batch holds for all; what happens once a step needs all of its stage."""
        for need in needed:
            rows = self._made.get((need.stage, need.kind), ABSENT), _row(stage, kind)
            if need.micro_batch is not None and kind not in PER_MICRO_BATCH:
                self._single.extend((last, self.groups[stage, kind][0]) for last in self._lasts(need, rows[0]))
            elif self._stages[need.stage].worker == self._stages[stage].worker:
                self._taken.append(rows)
            else:
                self._sent.append(rows)
                self._routes.append(self._route(need, stage))

    def _lasts(self, need: Result, row: int) -> list[int]:
        """Actions of one kind are taken in order, so the last stands for all."""
        makers = (kind for kind in ActionKind if need in results(any_action(need.stage, kind)))
        lasts = [self.groups[need.stage, kind][-1] for kind in makers if (need.stage, kind) in self.groups]
        return [*lasts, ABSENT] if (self._table[row] == ABSENT).any() else lasts

    def connect_order(self, stage: int, kind: ActionKind, needed: Sequence[Result]) -> None:
        """Of a kind that is always followed, the nearest earlier one stands for all before it, which it follows too."""
        always, in_same_micro_batch = followed()[kind]
        for other in always:
            if other is not kind and (stage, other) in self.groups:
                self._single.extend(_nearest_earlier(self.groups[stage, other], self.groups[stage, kind]))
        for other in in_same_micro_batch:
            # What it needs of the other it waits for anyway.
            if (stage, other) in self.groups and set(needed).isdisjoint(results(any_action(stage, other))):
                self._taken_if_earlier.append((_row(stage, other), _row(stage, kind)))

    def _route(self, need: Result, consumer: int) -> Route:
        workers = self._stages[need.stage].worker, self._stages[consumer].worker
        cost, num_bytes = self._link(*workers), self._parcel_bytes(need)
        link = self._links.setdefault(workers, len(self._links))
        return Route(link, num_bytes / cost.bytes_per_s, cost.latency_s, num_bytes)

    def _parcel_bytes(self, result: Result) -> int:
        """Norms and scale are a few bytes; what they cost is latency."""
        match result.kind:
            case ResultKind.OUTPUT:
                return self._stages[result.stage].output_bytes
            case ResultKind.INPUT_GRADIENT:
                return self._stages[result.stage - 1].output_gradient_bytes
            case _:
                return 0

    def graph(self) -> StepGraph:
        """All that was collected."""
        taken, sent = self._all_taken(), self._pairs(self._sent)
        route = np.repeat(np.arange(len(self._sent)), self._table.shape[1])
        sent, route = sent[:, sent[1] != ABSENT], route[sent[1] != ABSENT]
        num_actions = len(self._actions)
        missing, awaited = np.bincount(taken[1], minlength=num_actions), np.bincount(sent[1], minlength=num_actions)
        is_free = (missing == 0) & (awaited == 0)
        after, _ = _arcs(taken, num_actions)
        sends, order = _arcs(sent, num_actions)
        routes = [self._routes[index] for index in route[order].tolist()]
        seconds, busy_s = np.zeros(len(self._table)), [0.0] * len(self._stages)
        for (stage, kind), group in self.groups.items():
            seconds[_row(stage, kind)] = self._stages[stage].seconds(kind)
            busy_s[stage] += self._stages[stage].seconds(kind) * len(group)
        link_bytes = [0] * len(self._links)
        for link, _, _, num_bytes in routes:
            link_bytes[link] += num_bytes
        return StepGraph(
            actions=self._actions,
            stage=self._stage,
            worker=self._worker.tolist(),
            duration_s=seconds[self._row].tolist(),
            live_change=_LIVE_CHANGES[self._kind].tolist(),
            missing=missing.tolist(),
            awaited=awaited.tolist(),
            num_ready=np.bincount(self._worker[is_free], minlength=self._num_workers).tolist(),
            after=after,
            sends=sends,
            routes=routes,
            links=list(self._links),
            link_bytes=link_bytes,
            busy_s=busy_s,
        )

    def _all_taken(self) -> IndexArray:
        """[2, pairs] The second action waits until the first has been taken from their list."""
        follows = self._row[self._sorted[:-1]] == self._row[self._sorted[1:]]
        same_kind = np.stack([self._sorted[:-1], self._sorted[1:]])[:, follows]
        earlier = self._pairs(self._taken_if_earlier)
        earlier = earlier[:, (earlier[0] != ABSENT) & (earlier[0] < earlier[1])]
        single = np.array(self._single, np.intp).reshape(-1, 2).T
        taken = np.concatenate([same_kind, self._pairs(self._taken), earlier, single], axis=1)
        return np.asarray(taken[:, taken[1] != ABSENT])

    def _pairs(self, rows: Sequence[tuple[int, int]]) -> IndexArray:
        """[2, rows x m] Those of all micro-batches."""
        first, second = np.array(rows, np.intp).reshape(-1, 2).T
        return np.stack([self._table[first].reshape(-1), self._table[second].reshape(-1)])


def _row(stage: int, kind: ActionKind) -> int:
    return stage * len(_NUMBERS) + _NUMBERS[kind]


def _arcs(pairs: IndexArray, num_actions: int) -> tuple[Arcs, IndexArray]:
    """The pairs whose first is there, in its order, and which of the pairs each of them is."""
    order = np.argsort(pairs[0], kind="stable")
    begin = pairs[0, order].searchsorted(np.arange(num_actions + 1))
    order, begin = order[begin[0] :], begin - begin[0]
    return Arcs(begin.tolist(), pairs[1, order].tolist()), order


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
