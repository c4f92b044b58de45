"""Proves that the lists of a plan can run, before anything runs.

A schedule with a mistake does not crash, it waits for ever, on several hosts. So every set of lists is checked: each
action is there exactly once and on one worker, the order within a stage makes sense, no stage ever holds more
micro-batches than its bound, and a dry run over the links comes to its end. The dry run takes each list strictly in
order; what passes here cannot get stuck under `choice.choose` either (see there). All of it takes time linear in the
number of actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from pipesvc.core.actions import (
    Action,
    ActionKind,
    Result,
    ResultKind,
    backward,
    forward,
    input_backward,
    needs,
    results,
    weight_backward,
)
from pipesvc.core.generators.once import once_a_step
from pipesvc.core.live import live_change, live_peaks
from pipesvc.errors import ErrorCode, PipesvcError, Where

_SHOWN: Final = 8  # in a message that could name thousands
_ONCE: Final = "Each action of a step is there exactly once."
Lists = Mapping[str, Sequence[Action]]  # of each worker, by its name
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why lists cannot run. `position` counts within the list of `worker`; None: of something that is not there."""

    message: str
    advice: str = ""
    worker: str = ""
    position: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a step of these lists must contain."""

    num_stages: int
    num_micro_batches: int
    decides: bool = False


def check(
    per_worker_actions: Lists,
    *,
    num_stages: int,
    num_micro_batches: int,
    bounds: Mapping[int, int],
    decides: bool = False,
) -> dict[int, int]:
    """Refuses lists that cannot run; gives the most micro-batches that were alive at once on each stage."""
    contents = Contents(num_stages=num_stages, num_micro_batches=num_micro_batches, decides=decides)
    fault = find_fault(per_worker_actions, contents, bounds)
    if fault is not None:
        where = Where(worker=fault.worker)
        if fault.position is not None:
            action = per_worker_actions[fault.worker][fault.position]
            where = Where(worker=fault.worker, stage=action.stage, micro_batch=action.micro_batch)
        raise PipesvcError(ErrorCode.INVALID_PLAN, fault.message, advice=fault.advice, where=where)
    peaks = {stage: peak for actions in per_worker_actions.values() for stage, peak in live_peaks(actions).items()}
    return dict(sorted(peaks.items()))


def find_fault(lists: Lists, contents: Contents, bounds: Mapping[int, int]) -> Fault | None:
    """The first thing that is wrong with these lists; `bounds` are micro-batches alive at once, per stage."""
    for faults in (
        _faults_of_indices(lists, contents),
        _faults_of_counts(lists, contents),
        _faults_of_order(lists),
        _faults_of_bounds(lists, bounds),
        _faults_of_dry_run(lists, contents),
    ):
        for fault in faults:
            return fault
    return None


def _entries(lists: Lists) -> Iterator[tuple[str, int, Action]]:
    for worker, actions in lists.items():
        for position, action in enumerate(actions):
            yield worker, position, action


def _faults_of_indices(lists: Lists, contents: Contents) -> Iterator[Fault]:
    num_stages, num_micro_batches = contents.num_stages, contents.num_micro_batches
    home: dict[int, str] = {}
    for worker, position, action in _entries(lists):
        if action.stage >= num_stages:
            text = f"{action} is of a stage that is not among {num_stages} stages"
            yield Fault(text, "Stages count from 0.", worker, position)
        if action.micro_batch is not None and action.micro_batch >= num_micro_batches:
            text = f"{action} is of a micro-batch that is not among {num_micro_batches} micro-batches"
            yield Fault(text, "Micro-batches count from 0.", worker, position)
        other = home.setdefault(action.stage, worker)
        if other != worker:
            text = f"{action} is on {worker}, but stage {action.stage} is also on {other}"
            yield Fault(text, "All actions of a stage belong on one worker.", worker, position)


def _faults_of_counts(lists: Lists, contents: Contents) -> Iterator[Fault]:
    once = once_a_step(range(contents.num_stages), decides=contents.decides)
    allowed = set(once)
    found: dict[Action, tuple[str, int]] = {}
    for worker, position, action in _entries(lists):
        if action in found:
            yield Fault(f"{action} is there twice", _ONCE, worker, position)
        if action.micro_batch is None and action not in allowed:
            yield Fault(f"{action} has no place in this step", "Leave it out.", worker, position)
        found[action] = worker, position
    missing = []
    for stage in range(contents.num_stages):
        for index in range(contents.num_micro_batches):
            whole, parts = backward(stage, index), [input_backward(stage, index), weight_backward(stage, index)]
            present = [part for part in parts if part in found]
            if whole in found and present:
                advice = "A micro-batch has a whole backward (B) on a stage, or its two parts (I and W)."
                yield Fault(f"{present[0]} is beside {whole}", advice, *found[present[0]])
            backwards = parts if present else [whole]
            missing += [action for action in (forward(stage, index), *backwards) if action not in found]
    missing += [action for action in once if action not in found]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        yield Fault(f"the lists lack {', '.join(map(str, missing[:_SHOWN]))}{more}", _ONCE)


def _faults_of_order(lists: Lists) -> Iterator[Fault]:
    """Links are first in, first out and gradients are added in ascending order, so each result of a stage ascends."""
    newest: dict[tuple[int, ResultKind], Action] = {}
    updated: set[int] = set()
    for worker, position, action in _entries(lists):
        if action.stage in updated:
            yield Fault(f"{action} comes after {action.stage}U", "The update is a stage's last.", worker, position)
        if action.kind is ActionKind.UPDATE:
            updated.add(action.stage)
        for stage, kind, micro_batch in results(action):
            before = newest.get((stage, kind))
            if before is not None and (micro_batch or 0) < (before.micro_batch or 0):
                yield Fault(f"{action} comes after {before}", "Micro-batches of a stage ascend.", worker, position)
            newest[stage, kind] = action


def _faults_of_bounds(lists: Lists, bounds: Mapping[int, int]) -> Iterator[Fault]:
    live: dict[int, int] = {}
    for worker, position, action in _entries(lists):
        stage = action.stage
        live[stage] = number = live.get(stage, 0) + live_change(action)
        if number > bounds.get(stage, number):
            text = f"{action} would be number {number} in flight on stage {stage}, which may hold {bounds[stage]}"
            yield Fault(text, "", worker, position)


def _faults_of_dry_run(lists: Lists, contents: Contents) -> Iterator[Fault]:
    needed = partial(
        needs,
        num_stages=contents.num_stages,
        num_micro_batches=contents.num_micro_batches,
        decides=contents.decides,
    )
    yield from faults_of_waiting(lists, needed, results)


def faults_of_waiting(
    lists: Mapping[str, Sequence[T]], needs: Callable[[T], Iterable[Result]], gives: Callable[[T], Iterable[Result]]
) -> Iterator[Fault]:
    """Each worker runs its list in order until it lacks a result, and goes on when another gives it."""
    given: set[Result] = set()
    waiting: dict[Result, list[str]] = {}
    blocked: dict[str, tuple[int, Result]] = {}
    able = deque(lists)

    def run(worker: str) -> Iterator[tuple[int, Result]]:
        for position, entry in enumerate(lists[worker]):
            for result in needs(entry):
                if result not in given:
                    yield position, result
            for result in gives(entry):
                given.add(result)
                able.extend(waiting.pop(result, ()))

    runs = {worker: run(worker) for worker in lists}
    while able:
        worker = able.popleft()
        stop = next(runs[worker], None)
        if stop is None:
            blocked.pop(worker, None)
        else:
            blocked[worker] = stop
            waiting.setdefault(stop[1], []).append(worker)
    if blocked:
        givers = {result: entry for entries in lists.values() for entry in entries for result in gives(entry)}
        stories = [
            f"{worker} is blocked at {lists[worker][position]}, which waits for {givers[result]}"
            for worker, (position, result) in islice(blocked.items(), _SHOWN)
        ]
        worker, (position, _) = next(iter(blocked.items()))
        yield Fault(f"the lists lock each other up: {'; '.join(stories)}", "", worker, position)
