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
from pipesvc.core.stage_costs import StageCost, gradients_on_links, outputs_on_links

# How many more micro-batches are alive on a stage once an action of this kind has been taken.
_LIVE_CHANGE: Final = {ActionKind.FORWARD: 1, ActionKind.BACKWARD: -1, ActionKind.WEIGHT_BACKWARD: -1}
_NUMBERS: Final = {kind: number for number, kind in enumerate(ActionKind)}
_MAKERS: Final = {
    result: [kind for kind in ActionKind if result in (each.kind for each in results(any_action(0, kind)))]
    for result in ResultKind
}
_MADE_NUMBERS: Final = {result: number for number, result in enumerate(_MAKERS)}

# What an action needs of other stages for its micro-batch.
_FROM_OTHERS: Final = {
    ActionKind.FORWARD: (ResultKind.OUTPUT,),
    ActionKind.BACKWARD: (ResultKind.INPUT_GRADIENT,),
    ActionKind.INPUT_BACKWARD: (ResultKind.INPUT_GRADIENT,),
}

# Where an action or a result that the lists do not have would be; who waits for it waits for ever.
ABSENT: Final = -1

# What a parcel counts in `StepGraph.waits`; no action waits for so many others.
PARCEL: Final = 1 << 20

LinkOf: TypeAlias = Callable[[str, str], LinkCost]  # sender, receiver
IndexArray: TypeAlias = npt.NDArray[np.intp]


class Way(NamedTuple):
    """How parcels of one kind get from a stage to a stage on another worker."""

    readers: list[int]  # by micro-batch: the action that waits for it
    link: int  # index in StepGraph.links
    transfer_s: float  # the link is busy; parcels of one link are sent one after the other
    latency_s: float  # and then on their way


class Task(NamedTuple):
    """What the actions of one stage and kind have in common."""

    stage: int
    duration_s: float
    live_change: int
    ways: list[Way]  # of what they send


class Arcs(NamedTuple):
    """Pairs of actions by the first of each: the seconds of action i are `second[begin[i] : begin[i + 1]]`."""

    begin: list[int]
    second: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGraph:
    """Actions are numbered worker by worker, in the order of their lists. What is not said otherwise is by action."""

    actions: list[Action]
    tasks: list[Task]
    worker: list[int]
    micro_batch: list[int]  # 0 for what happens once a step
    # Actions of its worker that must be taken before, and PARCEL for each parcel that must have come. The simulator
    # counts it down.
    waits: list[int]
    num_ready: list[int]  # per worker: the actions that wait for no other
    after: Arcs  # to those that wait until this one has been taken
    links: list[tuple[str, str]]  # sender and receiver
    link_bytes: list[int]  # per link, in one step
    busy_s: list[float]  # per stage


def build(
    lists: Sequence[Sequence[Action]],
    stages: Sequence[StageCost],
    link: LinkOf,
    *,
    num_micro_batches: int,
    decides: bool,
) -> StepGraph:
    """The graph of these workers' lists."""
    builder = _Builder(lists, stages, link, num_micro_batches)
    for stage, kind in builder.groups:
        needed = builder.needs(stage, kind, decides=decides)
        builder.connect_needs(stage, kind, needed)
        builder.connect_order(stage, kind, needed)
    return builder.graph()


class _Builder:
    """Collects what groups wait for, as pairs of rows of one table, and makes the graph of it."""

    def __init__(
        self, lists: Sequence[Sequence[Action]], stages: Sequence[StageCost], link: LinkOf, num_micro_batches: int
    ) -> None:
        self._stages, self._link, self._num_workers = stages, link, len(lists)
        # What goes between two stages, in bytes; norms and scale are a few, and what they cost is latency.
        self._sizes = {
            ResultKind.OUTPUT: outputs_on_links(stages),
            ResultKind.INPUT_GRADIENT: gradients_on_links(stages),
        }
        self._actions = [action for actions in lists for action in actions]
        self._worker = np.repeat(np.arange(len(lists)), list(map(len, lists)))
        self._micro_batch = [action.micro_batch or 0 for action in self._actions]
        kind = np.array([_NUMBERS[action.kind] for action in self._actions], np.intp)
        stage = np.array([action.stage for action in self._actions], np.intp)
        self._row = stage * len(_NUMBERS) + kind
        self._sorted = np.argsort(self._row, kind="stable")
        self.groups = self._grouped()
        # [R, m]: actions by stage and kind, and those that make a result by stage and kind of that.
        table = np.full((len(stages), len(_NUMBERS), num_micro_batches), ABSENT)
        table[stage, kind, self._micro_batch] = np.arange(len(self._actions))
        made = [table[:, [_NUMBERS[kind] for kind in kinds]].max(axis=1) for kinds in _MAKERS.values()]
        self._table = table.reshape(-1, num_micro_batches)
        self._made = np.stack(made, axis=1).reshape(-1, num_micro_batches)
        self._tasks = {
            (stage, kind): Task(stage, stages[stage].seconds(kind), _LIVE_CHANGE.get(kind, 0), [])
            for stage, kind in self.groups
        }
        # Pairs of a row of results, or of actions, and a row of actions that waits for it.
        self._taken: list[tuple[int, int]] = []
        self._sent: list[tuple[int, int]] = []
        self._taken_if_earlier: list[tuple[int, int]] = []
        self._single: list[tuple[int, int]] = []  # pairs of actions
        self._link_bytes: dict[tuple[str, str], int] = {}

    def _grouped(self) -> dict[tuple[int, ActionKind], list[int]]:
        """Actions of one stage and kind, in the order of their list."""
        indices, row = self._sorted.tolist(), self._row[self._sorted]
        begins = (np.flatnonzero(row[1:] != row[:-1]) + 1).tolist()
        groups = sorted(indices[begin:end] for begin, end in pairwise([0, *begins, len(indices)]))
        firsts = (self._actions[group[0]] for group in groups)
        return {(first.stage, first.kind): group for first, group in zip(firsts, groups, strict=True)}

    def needs(self, stage: int, kind: ActionKind, *, decides: bool) -> list[Result]:
        """For the first micro-batch. `actions.needs` speaks of a chain; what goes where, the stages say."""
        action = any_action(stage, kind)
        found = needs(action, num_stages=len(self._stages), num_micro_batches=1, decides=decides)
        own = [need for need in found if need.stage == stage or need.kind not in self._sizes]
        for result in _FROM_OTHERS.get(kind, ()):
            senders = [sender for sender, receiver in self._sizes[result] if receiver == stage]
            own += [Result(sender, result, action.micro_batch) for sender in senders]
        return own

    def connect_needs(self, stage: int, kind: ActionKind, needed: Sequence[Result]) -> None:
        """What is needed of the first micro-batch holds for all; what happens once a step needs all of its stage."""
        for need in needed:
            rows = _made_row(need), _row(stage, kind)
            if need.micro_batch is not None and kind not in PER_MICRO_BATCH:
                self._single.extend((last, self.groups[stage, kind][0]) for last in self._lasts(need))
            elif self._stages[need.stage].worker == self._stages[stage].worker:
                self._taken.append(rows)
            else:
                self._sent.append(rows)
                num_bytes = self._sizes.get(need.kind, {}).get((need.stage, stage), 0)
                self._connect_workers(need, self._stages[stage].worker, self._table[rows[1]], num_bytes)

    def _lasts(self, need: Result) -> list[int]:
        """Actions of one kind are taken in order, so the last stands for all."""
        groups = (self.groups.get((need.stage, kind)) for kind in _MAKERS[need.kind])
        lasts = [group[-1] for group in groups if group]
        return [*lasts, ABSENT] if ABSENT in self._made[_made_row(need)] else lasts

    def _connect_workers(self, need: Result, worker: str, readers: IndexArray, num_bytes: int) -> None:
        workers = self._stages[need.stage].worker, worker
        cost = self._link(*workers)
        num_parcels = int(((readers != ABSENT) & (self._made[_made_row(need)] != ABSENT)).sum())
        self._link_bytes[workers] = self._link_bytes.get(workers, 0) + num_parcels * num_bytes
        link = list(self._link_bytes).index(workers)
        way = Way(readers.tolist(), link, num_bytes / cost.bytes_per_s, cost.latency_s)
        for kind in _MAKERS[need.kind]:
            if (need.stage, kind) in self.groups:
                self._tasks[need.stage, kind].ways.append(way)

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

    def graph(self) -> StepGraph:
        """All that was collected."""
        num_actions, by_row = len(self._actions), {_row(*group): task for group, task in self._tasks.items()}
        taken, read = self._all_taken(), _pairs(self._made, self._table, self._sent)[1]
        waits = np.bincount(taken[1], minlength=num_actions)
        waits += PARCEL * np.bincount(read[read != ABSENT], minlength=num_actions)
        busy_s = [0.0] * len(self._stages)
        for key, task in self._tasks.items():
            busy_s[task.stage] += task.duration_s * len(self.groups[key])
        return StepGraph(
            actions=self._actions,
            tasks=[by_row[row] for row in self._row.tolist()],
            worker=self._worker.tolist(),
            micro_batch=self._micro_batch,
            waits=waits.tolist(),
            num_ready=np.bincount(self._worker[waits == 0], minlength=self._num_workers).tolist(),
            after=_arcs(taken, num_actions),
            links=list(self._link_bytes),
            link_bytes=list(self._link_bytes.values()),
            busy_s=busy_s,
        )

    def _all_taken(self) -> IndexArray:
        """[2, pairs] The second action waits until the first, which may be absent, has been taken from their list."""
        follows = self._row[self._sorted[:-1]] == self._row[self._sorted[1:]]
        same_kind = np.stack([self._sorted[:-1], self._sorted[1:]])[:, follows]
        earlier = _pairs(self._table, self._table, self._taken_if_earlier)
        earlier = earlier[:, (earlier[0] != ABSENT) & (earlier[0] < earlier[1])]
        single = np.array(self._single, np.intp).reshape(-1, 2).T
        needed = _pairs(self._made, self._table, self._taken)
        taken = np.concatenate([same_kind, needed, earlier, single], axis=1)
        return np.asarray(taken[:, taken[1] != ABSENT])


def _row(stage: int, kind: ActionKind) -> int:
    return stage * len(_NUMBERS) + _NUMBERS[kind]


def _made_row(result: Result) -> int:
    return result.stage * len(_MAKERS) + _MADE_NUMBERS[result.kind]


def _pairs(firsts: IndexArray, seconds: IndexArray, rows: Sequence[tuple[int, int]]) -> IndexArray:
    """[2, rows x m] Those of all micro-batches."""
    first, second = np.array(rows, np.intp).reshape(-1, 2).T
    return np.stack([firsts[first].reshape(-1), seconds[second].reshape(-1)])


def _arcs(pairs: IndexArray, num_actions: int) -> Arcs:
    first, second = pairs[:, pairs[0] != ABSENT]
    begin = np.bincount(first + 1, minlength=num_actions + 1).cumsum()
    return Arcs(begin.tolist(), second[np.argsort(first, kind="stable")].tolist())


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
