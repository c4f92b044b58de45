"""Schedules as data: which actions a worker runs in a step, and in which order.

Executors, checker and simulator make the lists from the same function, so no list ever travels; of a schedule that the
user wrote, its text does. Backwards always ascend in micro-batch on each stage, so gradients are added in the same
order and every schedule gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pipesvc.core import schedule_csv, sharing
from pipesvc.core.actions import Action, ActionKind, Result, needs, results
from pipesvc.core.choice import LOOK_AHEAD
from pipesvc.core.generators import per_stage
from pipesvc.core.generators.interleaved import interleaved
from pipesvc.core.generators.once import once_a_step
from pipesvc.core.generators.zero_bubble_v import zero_bubble_v
from pipesvc.core.sharing import Sharing
from pipesvc.errors import ErrorCode, PipesvcError

# What a plan whose schedule the user wrote calls it; its text is beside it.
FILE: Final = "file"
# Of a pass without a backward.
FORWARDS: Final = "inference"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Schedule:
    """One way to order a step: a generator for each stage or for each worker, or (a file) neither."""

    name: str  # as people write it
    keeps: str  # in flight, in words
    # Forwards and backwards of (stage, num_stages, num_micro_batches, in_flight).
    per_stage: Callable[[int, int, int, int], Sequence[Action]] | None = None
    # The same of (worker, num_workers, num_parts, num_micro_batches).
    per_worker: Callable[[int, int, int, int], Sequence[Action]] | None = None
    sharing: Sharing = Sharing.ANY
    keeps_order: bool = False  # of each stage, also while another entry could run
    splits: bool = False  # backwards into I and W
    trains: bool = True


_ALL: Final = (
    _Schedule(name="naive", keeps="one micro-batch", per_stage=per_stage.naive, keeps_order=True),
    _Schedule(name="GPipe", keeps="all micro-batches", per_stage=per_stage.gpipe, keeps_order=True),
    _Schedule(name="1F1B", keeps="1 or more micro-batches", per_stage=per_stage.one_f_one_b),
    _Schedule(
        name="Interleaved1F1B",
        keeps="a fixed number of parts",
        per_worker=interleaved,
        sharing=Sharing.ROUND,
    ),
    _Schedule(name="ZBH1", keeps="one micro-batch for each stage", per_stage=per_stage.zero_bubble_h1, splits=True),
    _Schedule(name="ZBV", keeps="two parts for each worker", per_worker=zero_bubble_v, sharing=Sharing.V, splits=True),
    _Schedule(name=FORWARDS, keeps="nothing", per_stage=per_stage.inference, keeps_order=True, trains=False),
    _Schedule(name=FILE, keeps="what is written", sharing=Sharing.ROWS),
)
_BY_NAME: Final = {schedule.name.lower(): schedule for schedule in _ALL}
# What a training job may name.
SCHEDULE_NAMES: Final = tuple(each.name for each in _ALL if each.trains and each.sharing is not Sharing.ROWS)


def schedule_name(schedule: str) -> str:
    """The schedule's name as people write it; upper and lower case do not matter."""
    return _find(schedule).name


def _find(schedule: str) -> _Schedule:
    found = _BY_NAME.get(schedule.lower())
    if found is None:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"unknown schedule {schedule!r}",
            advice=f"Choose one of {', '.join(SCHEDULE_NAMES)}.",
        )
    return found


def check_counts(schedule: str, *, num_micro_batches: int, in_flight: int = 0, text: str = "") -> None:
    """Refuses what the schedule is not defined for: each one here has its lists for any number of micro-batches, but a
    file's (`text`) are for as many as it names."""
    found = _find(schedule)
    if num_micro_batches < 1:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN, f"micro_batches is {num_micro_batches}", advice="Use 1 or more micro-batches."
        )
    if in_flight < 0 or (in_flight and found.name != "1F1B"):
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"in_flight={in_flight} does not fit {found.name}, which keeps {found.keeps} in flight",
            advice="Leave in_flight out, or use 1F1B with in_flight of 1 or more.",
        )
    if found.name == FILE:
        schedule_csv.read(text, num_micro_batches)


def splits_backward(schedule: str, text: str = "") -> bool:
    """Whether its lists have I and W; `text` is that of a schedule file."""
    found = _find(schedule)
    if found.sharing is not Sharing.ROWS:
        return found.splits
    return any(action.kind is ActionKind.INPUT_BACKWARD for row in schedule_csv.read(text).rows for action in row)


def num_stages_by_default(schedule: str, num_workers: int, text: str = "", *, num_layers: int | None = None) -> int:
    """How many stages to make where the user gives no number. See `sharing`."""
    return sharing.num_stages_by_default(_find(schedule).sharing, num_workers, _rows(text), num_layers)


def shares_workers(schedule: str) -> bool:
    """Whether it says itself which stages a worker holds together."""
    return _find(schedule).sharing is not Sharing.ANY


def homes(schedule: str, *, num_stages: int, num_workers: int, text: str = "") -> tuple[int, ...]:
    """The worker of each stage, counted from 0: stages with the same number belong on one worker. See `sharing`."""
    return sharing.homes(_find(schedule).sharing, num_stages, num_workers, _rows(text))


def check_placement(schedule: str, stages_per_worker: Sequence[Sequence[int]], *, text: str = "") -> None:
    """Refuses a placement that the schedule is not defined for, with its rule."""
    sharing.check_all(_find(schedule).sharing, stages_per_worker, _rows(text))


def _rows(text: str) -> sharing.Rows:
    return schedule_csv.read(text).stages_of_rows if text else ()


def look_ahead(schedule: str, num_held: int) -> int:
    """How far `choice.choose` may look on a worker that holds this many stages.

    Most schedules may run what is ready before something that is late, within their bounds. GPipe and naive keep the
    order of each stage, as their names promise, and look only as far as the stages of the worker need to let another
    stage go on: all but one may wait, for instance with their update for new weights. What the user wrote runs as it is
    written.
    """
    found = _find(schedule)
    if found.sharing is Sharing.ROWS:
        return 1
    return num_held if found.keeps_order else max(num_held, LOOK_AHEAD)


def worker_actions(
    schedule: str,
    *,
    stages: Sequence[int],
    num_stages: int,
    num_micro_batches: int,
    in_flight: int = 0,
    decides: bool = False,
    text: str = "",
) -> tuple[Action, ...]:
    """The priority list of a worker that holds these stages; `text` is that of a schedule file.

    Its bounds on micro-batches alive are its own peaks (`live.live_peaks`). A step with fewer micro-batches than the
    file leaves out those that are not there.
    """
    held = tuple(sorted(set(stages)))
    if not held or held[0] < 0 or held[-1] >= num_stages:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"a worker cannot hold stages {list(held)} of {num_stages} stages")
    if num_micro_batches < 1:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"a step has 1 or more micro-batches, not {num_micro_batches}")
    found = _find(schedule)
    if found.per_stage is not None:
        if len(held) == 1:
            return _stage_actions(found, held[0], num_stages, num_micro_batches, in_flight, decides)
        order = _unit_time_order(found, num_stages, num_micro_batches, in_flight, decides)
        return tuple(action for action in order if action.stage in held)
    worker, num_workers = sharing.place_of(found.sharing, held, num_stages, _rows(text))
    if found.per_worker is not None:
        actions = found.per_worker(worker, num_workers, len(held), num_micro_batches)
    else:
        row = schedule_csv.read(text).rows[worker]
        actions = [action for action in row if (action.micro_batch or 0) < num_micro_batches]
    return (*actions, *once_a_step(held, decides=decides))


def _stage_actions(
    schedule: _Schedule, stage: int, num_stages: int, num_micro_batches: int, in_flight: int, decides: bool
) -> tuple[Action, ...]:
    assert schedule.per_stage is not None
    actions = schedule.per_stage(stage, num_stages, num_micro_batches, in_flight)
    return (*actions, *once_a_step([stage], decides=decides)) if schedule.trains else tuple(actions)


@lru_cache(maxsize=16)  # an executor asks again for every step
def _unit_time_order(
    schedule: _Schedule, num_stages: int, num_micro_batches: int, in_flight: int, decides: bool
) -> tuple[Action, ...]:
    """The actions of all stages, for workers that hold several.

    The order is that of a run in which each stage had a worker of its own and every action took one unit of time. In
    that order an action comes after all it needs, on every worker alike, so whatever the placement, the earliest
    action that has not run can always run: the lists never lock each other up. Of the same unit, forwards come after
    the gradients that others wait for, and weight gradients last.
    """
    left = [
        deque(_stage_actions(schedule, stage, num_stages, num_micro_batches, in_flight, decides))
        for stage in range(num_stages)
    ]
    order: list[Action] = []
    done: set[Result] = set()
    while any(left):
        heads = [actions[0] for actions in left if actions]
        ready = [
            action
            for action in heads
            if done.issuperset(
                needs(action, num_stages=num_stages, num_micro_batches=num_micro_batches, decides=decides)
            )
        ]
        assert ready, "stage lists lock each other up"
        ready.sort(key=lambda action: (_RANKS.get(action.kind, 0), -action.stage))
        order += ready
        for action in ready:
            done.update(results(action))
            left[action.stage].popleft()
    return tuple(order)


_RANKS: Final = {ActionKind.FORWARD: 1, ActionKind.WEIGHT_BACKWARD: 2}
