"""How long a step takes and what each worker does meanwhile, before anything runs.

The step is played with the rule that executors use (`choice.choose`), from the times of each stage and of the links.
So which schedule, and how many micro-batches in flight, can be told from measured times rather than guessed.

Workers compute one action at a time. A result is sent when its action has ended, and compute goes on meanwhile: the
parcel waits until the link to that worker is free, occupies it for bytes / bandwidth, and is there a latency later.

The usual event queue holds an event for every end and every arrival. Here a worker runs on through its list by
itself for as long as nothing that is still unknown could change its choice; only then does it wait, until it is the
earliest of those that wait (conservative simulation: Chandy and Misra 1979). Most actions never meet the queue.

Of what ends or arrives at one moment, everything counts before anyone chooses. An action that takes no time, with a
result that travels in no time, may be seen at that same moment or at the reader's next choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final

from pipesvc.core.costs import LinkCost
from pipesvc.core.stage_costs import StageCost
from pipesvc.core.step_graph import ABSENT, PARCEL, LinkOf, StepGraph, build
from pipesvc.core.step_lists import StepLists, step_lists
from pipesvc.core.timeline import Simulation
from pipesvc.errors import ErrorCode, PipesvcError

_NOT_QUEUED: Final = -1.0


def free_link(sender: str, receiver: str) -> LinkCost:
    """What is sent is there at once."""
    return LinkCost()


def simulate(
    schedule: str,
    stages: Sequence[StageCost],
    *,
    num_micro_batches: int,
    in_flight: int = 0,
    decides: bool = False,
    link: LinkOf = free_link,
) -> Simulation:
    """Plays one step of this schedule as executors would; `Costs.link` is a `link`."""
    lists = step_lists(
        schedule,
        homes=[stage.worker for stage in stages],
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
        decides=decides,
    )
    return play(lists, stages, num_micro_batches=num_micro_batches, decides=decides, link=link)


def play(
    lists: StepLists,
    stages: Sequence[StageCost],
    *,
    num_micro_batches: int,
    decides: bool = False,
    link: LinkOf = free_link,
) -> Simulation:
    """Plays lists that `checker.check` accepts, whatever made them; such that lock each other up are INVALID_PLAN."""
    workers = list(lists.per_worker)
    own = [lists.per_worker[worker] for worker in workers]
    graph = build(own, stages, link, num_micro_batches=num_micro_batches, decides=decides)
    num_actions, num_stages = len(graph.actions), len(stages)
    step = _Step(
        graph=graph,
        look_aheads=[lists.look_aheads[worker] for worker in workers],
        limits=[lists.bounds.get(stage, num_actions) for stage in range(num_stages)],
        pending=_numbered(list(map(len, own))),
        free_s=[0.0] * len(workers),
        live=[0] * num_stages,
        peaks=[0] * num_stages,
        arrival_s=[0.0] * num_actions,
        start_s=[0.0] * num_actions,
        end_s=[0.0] * num_actions,
        link_free_s=[0.0] * len(graph.links),
        able=deque(range(len(workers))),
        is_able=[True] * len(workers),
        wakes_s=[_NOT_QUEUED] * len(workers),
    )
    step.run()
    stuck = [str(graph.actions[pending[-1]]) for pending in step.pending if pending]
    if stuck:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"the lists lock each other up at {', '.join(stuck)}",
            advice="The checker says what each of these waits for.",
        )
    worker_busy_s = dict.fromkeys(workers, 0.0)
    for stage, seconds in zip(stages, graph.busy_s, strict=True):
        worker_busy_s[stage.worker] += seconds
    return Simulation(
        step_s=max(step.free_s, default=0.0),
        busy_s=tuple(graph.busy_s),
        worker_busy_s=worker_busy_s,
        peak_in_flight=tuple(step.peaks),
        link_bytes=dict(zip(graph.links, graph.link_bytes, strict=True)),
        actions=graph.actions,
        starts_s=step.start_s,
        ends_s=step.end_s,
    )


def _numbered(lengths: Sequence[int]) -> list[list[int]]:
    """Consecutive numbers in groups of these lengths, each group backwards."""
    groups, first = [], 0
    for length in lengths:
        groups.append(list(range(first + length - 1, first - 1, -1)))
        first += length
    return groups


@dataclass(slots=True, kw_only=True)
class _Step:
    """The moving parts; lists are by worker, stage, action or link."""

    graph: StepGraph
    look_aheads: Sequence[int]
    limits: Sequence[int]
    pending: list[list[int]]  # of each worker, the head of its list last, where it is cheap to take
    free_s: list[float]  # the end of what each worker did last
    live: list[int]
    peaks: list[int]
    arrival_s: list[float]  # of the latest parcel for an action, among those that are known
    start_s: list[float]
    end_s: list[float]
    link_free_s: list[float]
    # Workers for which something has become known; first come, first served, as more has by the time of their turn.
    able: deque[int]
    is_able: list[bool]
    wakes_s: list[float]  # of each worker, its moment in the queue that counts
    moments: list[tuple[float, int]] = field(default_factory=list)

    def _turns(self) -> Iterator[tuple[int, float]]:
        """Workers that may have something to run, and the moment up to which whatever arrives is known."""
        able, is_able, moments, wakes_s = self.able, self.is_able, self.moments, self.wakes_s
        known_s = 0.0
        while able or moments:
            if able:
                worker = able.popleft()
                is_able[worker] = False
            else:
                known_s, worker = heappop(moments)
                if wakes_s[worker] != known_s:
                    continue
            wakes_s[worker] = _NOT_QUEUED
            yield worker, known_s

    def run(self) -> None:
        """Plays to the end, or until all wait for each other."""
        graph, start_s, end_s, arrival_s = self.graph, self.start_s, self.end_s, self.arrival_s
        tasks, micro_batch, worker_of, waits = graph.tasks, graph.micro_batch, graph.worker, graph.waits
        first_after, after = graph.after
        live, peaks, limits, link_free_s = self.live, self.peaks, self.limits, self.link_free_s
        num_ready, able, is_able = graph.num_ready, self.able, self.is_able
        for worker, known_s in self._turns():
            own, now, ready = self.pending[worker], self.free_s[worker], num_ready[worker]
            while ready:
                index = own[-1]
                stage, duration_s, live_change, ways = tasks[index]
                if not waits[index] and arrival_s[index] <= now and (live_change <= 0 or live[stage] < limits[stage]):
                    own.pop()
                else:
                    position, able_s, is_certain = self._look(worker, now)
                    if not is_certain and able_s > known_s:
                        self._wait(worker, able_s)
                        break
                    index, now = own.pop(position), able_s
                    stage, duration_s, live_change, ways = tasks[index]
                ready -= 1
                start_s[index] = now
                now += duration_s
                end_s[index] = now
                if live_change:
                    live[stage] += live_change
                    if live[stage] > peaks[stage]:
                        peaks[stage] = live[stage]
                for other in after[first_after[index] : first_after[index + 1]]:
                    waits[other] -= 1
                    if not waits[other]:
                        ready += 1
                for readers, link, transfer_s, latency_s in ways:
                    other = readers[micro_batch[index]]
                    if other == ABSENT:
                        continue
                    sent_s = link_free_s[link]
                    sent_s = (sent_s if sent_s > now else now) + transfer_s
                    link_free_s[link] = sent_s
                    if sent_s + latency_s > arrival_s[other]:
                        arrival_s[other] = sent_s + latency_s
                    waits[other] -= PARCEL
                    if not waits[other]:
                        reader = worker_of[other]
                        num_ready[reader] += 1
                        if not is_able[reader]:
                            is_able[reader] = True
                            able.append(reader)
            self.free_s[worker], num_ready[worker] = now, ready

    def _wait(self, worker: int, until_s: float) -> None:
        """For its moment, if there is one that is known."""
        if until_s < inf:
            self.wakes_s[worker] = until_s
            heappush(self.moments, (until_s, worker))

    def _look(self, worker: int, now: float) -> tuple[int, float, bool]:
        """Where the action stands that runs next as far as is known, when, and whether no other can come before it."""
        tasks, waits = self.graph.tasks, self.graph.waits
        found, found_s, is_open = 0, inf, False
        for place, index in enumerate(self.pending[worker][: -self.look_aheads[worker] - 1 : -1]):
            if waits[index] % PARCEL:
                continue
            stage, _, live_change, _ = tasks[index]
            if live_change > 0 and self.live[stage] >= self.limits[stage]:
                continue
            if waits[index]:
                is_open = True
                continue
            able_s = self.arrival_s[index]
            if able_s < found_s:
                found, found_s = place, able_s
                if able_s <= now:
                    break
        return -1 - found, max(found_s, now), found_s < inf and not is_open
