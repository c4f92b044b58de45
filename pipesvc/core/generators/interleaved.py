"""Interleaved 1F1B: each worker holds several parts of the model, so that the pipeline fills in smaller pieces.

Published orders want the micro-batches to be a multiple of the workers; with others, pairs of forward and backward made
by counting wait for each other in a circle. So the order is played instead, in units of time: a worker runs its next
forward while the published bound allows, else its next backward; only when all workers wait may backwards go first.
Where the published order is defined, it comes out.

Legend: p workers, r the index of a worker, v parts on each, m micro-batches. Worker r holds stages r, r + p, ...
Alive on worker r at most: min(v * m, (v - 1) * p + 2 * (p - 1 - r) + 1) parts.
Source: Narayanan et al. 2021, arXiv:2104.04473.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from pipesvc.core.actions import Action, Result, backward, forward, needs, results


def interleaved(worker: int, num_workers: int, num_parts: int, num_micro_batches: int) -> tuple[Action, ...]:
    return _orders(num_workers, num_parts, num_micro_batches)[worker]


@dataclass(kw_only=True, slots=True)
class _Worker:
    """What is left to do on a worker, and what it has done."""

    forwards: list[Action]  # reversed: the next one is the last
    backwards: list[Action]
    bound: int
    order: list[Action] = field(default_factory=list)

    def next(self, can_run: Callable[[Action], bool], *, may_turn_back: bool) -> Action | None:
        has_room = len(self.backwards) - len(self.forwards) < self.bound
        if self.forwards and has_room:
            if can_run(self.forwards[-1]):
                return self.forwards.pop()
            if not may_turn_back:
                return None
        if self.backwards and can_run(self.backwards[-1]):
            return self.backwards.pop()
        return None


@lru_cache(maxsize=16)  # each worker of a plan asks
def _orders(num_workers: int, num_parts: int, num_micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    num_stages = num_workers * num_parts
    workers = []
    for index in range(num_workers):
        stages = range(index, num_stages, num_workers)
        workers.append(
            _Worker(
                forwards=_in_groups(forward, stages, num_workers, num_micro_batches)[::-1],
                backwards=_in_groups(backward, stages[::-1], num_workers, num_micro_batches)[::-1],
                bound=(num_parts - 1) * num_workers + 2 * (num_workers - 1 - index) + 1,
            )
        )
    done: set[Result] = set()

    def can_run(action: Action) -> bool:
        return done.issuperset(needs(action, num_stages=num_stages, num_micro_batches=num_micro_batches, decides=False))

    may_turn_back = False
    while any(worker.backwards for worker in workers):
        started = [(worker, worker.next(can_run, may_turn_back=may_turn_back)) for worker in workers]
        results_of_unit: list[Result] = []
        for worker, action in started:
            if action is not None:
                worker.order.append(action)
                results_of_unit += results(action)
        assert results_of_unit or not may_turn_back, "the workers wait for each other"
        may_turn_back = not results_of_unit
        done.update(results_of_unit)
    return tuple(tuple(worker.order) for worker in workers)


def _in_groups(
    make: Callable[[int, int], Action], stages: range, num_workers: int, num_micro_batches: int
) -> list[Action]:
    """As many micro-batches as there are workers go through all parts, then the next ones."""
    return [
        make(stage, index)
        for start in range(0, num_micro_batches, num_workers)
        for stage in stages
        for index in range(start, min(start + num_workers, num_micro_batches))
    ]
