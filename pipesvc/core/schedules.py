"""Schedules as data: which actions a stage runs in a step, and in which order.

Written as loops, GPipe and 1F1B exist twice as soon as something must check, simulate or draw them, and the copies
drift. Here a schedule is one number per stage: how many micro-batches may be alive there at once. The list follows
from it: that many forwards, then backward and forward in turn, then the rest of the backwards. Executors, checker and
simulator make the lists from the same function, so no list ever travels.

Legend: p stages (`num_stages`), m micro-batches (`num_micro_batches`), s the index of a stage.

| schedule | alive on stage s at most               |
|----------|----------------------------------------|
| naive    | 1                                      |
| GPipe    | m                                      |
| 1F1B     | min(m, p - s), or sloping down from `in_flight` on stage 0 to 1 on the last stage |

More in flight than p on stage 0 hides the time of a hop between workers, at the price of memory.
Backwards always ascend in micro-batch, so gradients are added in the same order and every schedule gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from pipesvc.core.actions import Action, ActionKind, awaited, backward, forward
from pipesvc.core.choice import LOOK_AHEAD
from pipesvc.errors import ErrorCode, PipesvcError


def _naive(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> int:
    return 1


def _gpipe(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> int:
    return num_micro_batches


def _one_f_one_b(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> int:
    stages_after = num_stages - 1 - stage
    if not in_flight or num_stages == 1:
        return min(num_micro_batches, in_flight or stages_after + 1)
    # Rounded up; `in_flight == num_stages` gives plain 1F1B.
    return min(num_micro_batches, 1 - (-(in_flight - 1) * stages_after // (num_stages - 1)))


# Lower-case name -> (the name as people write it, alive micro-batches of a stage).
_REGISTRY: Final[dict[str, tuple[str, Callable[[int, int, int, int], int]]]] = {
    "naive": ("naive", _naive),
    "gpipe": ("GPipe", _gpipe),
    "1f1b": ("1F1B", _one_f_one_b),
}

SCHEDULE_NAMES: Final[tuple[str, ...]] = tuple(name for name, _ in _REGISTRY.values())


def schedule_name(schedule: str) -> str:
    """The schedule's name as people write it; upper and lower case do not matter."""
    return _entry(schedule)[0]


def _entry(schedule: str) -> tuple[str, Callable[[int, int, int, int], int]]:
    entry = _REGISTRY.get(schedule.lower())
    if entry is None:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"unknown schedule {schedule!r}",
            advice=f"Choose one of {', '.join(SCHEDULE_NAMES)}.",
        )
    return entry


def check_counts(schedule: str, *, num_micro_batches: int, in_flight: int = 0) -> None:
    """Refuses what the schedule is not defined for. Each one here runs with any number of stages and micro-batches."""
    name, _ = _entry(schedule)
    if num_micro_batches < 1:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN, f"micro_batches is {num_micro_batches}", advice="Use 1 or more micro-batches."
        )
    if in_flight < 0 or (in_flight and name != "1F1B"):
        own = {"GPipe": "all micro-batches", "naive": "one micro-batch", "1F1B": "1 or more micro-batches"}[name]
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"in_flight={in_flight} does not fit {name}, which keeps {own} in flight",
            advice="Leave in_flight at 0, or use 1F1B with in_flight of 1 or more.",
        )


def in_flight_bound(schedule: str, stage: int, num_stages: int, num_micro_batches: int, in_flight: int = 0) -> int:
    """How many micro-batches may be alive on this stage: their forward has run there and their backward has not."""
    if not 0 <= stage < num_stages:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"there is no stage {stage} among {num_stages} stages")
    return _entry(schedule)[1](stage, num_stages, num_micro_batches, in_flight)


def look_ahead(schedule: str, num_held: int) -> int:
    """How far `choice.choose` may look on a worker that holds this many stages.

    1F1B may run a backward before a forward that is late. GPipe and naive keep the order of each stage, as their names
    promise, and look only as far as the stages of the worker need to let another stage go on.
    """
    return LOOK_AHEAD if schedule_name(schedule) == "1F1B" else num_held


def stage_actions(
    schedule: str, *, stage: int, num_stages: int, num_micro_batches: int, in_flight: int = 0, clips: bool = False
) -> tuple[Action, ...]:
    """What this stage does in one step, in order."""
    if num_micro_batches < 1:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"a step has 1 or more micro-batches, not {num_micro_batches}")
    num_ahead = in_flight_bound(schedule, stage, num_stages, num_micro_batches, in_flight)
    actions = [forward(stage, index) for index in range(num_ahead)]
    for index in range(num_micro_batches):
        actions.append(backward(stage, index))
        if index + num_ahead < num_micro_batches:
            actions.append(forward(stage, index + num_ahead))
    if clips:
        actions.append(Action(stage, ActionKind.NORM))
        if stage == 0:
            actions.append(Action(0, ActionKind.DECIDE))
    actions.append(Action(stage, ActionKind.UPDATE))
    return tuple(actions)


def worker_actions(
    schedule: str,
    *,
    stages: Sequence[int],
    num_stages: int,
    num_micro_batches: int,
    in_flight: int = 0,
    clips: bool = False,
) -> tuple[Action, ...]:
    """The priority list of a worker that holds these stages.

    Its order is that of a run in which each stage had a worker of its own and every action took one unit of time. In
    that order an action comes after all it needs, on every worker alike, so whatever the placement, the earliest
    action that has not run can always run: the lists never lock each other up. Of the same unit, backwards come
    first, which free memory.
    """
    held = sorted(set(stages))
    if not held or held[0] < 0 or held[-1] >= num_stages:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"a worker cannot hold stages {held} of {num_stages} stages")
    if len(held) == 1:
        return stage_actions(
            schedule,
            stage=held[0],
            num_stages=num_stages,
            num_micro_batches=num_micro_batches,
            in_flight=in_flight,
            clips=clips,
        )
    order = _unit_time_order(schedule, num_stages, num_micro_batches, in_flight, clips)
    return tuple(action for action in order if action.stage in held)


@lru_cache(maxsize=16)  # an executor asks again for every step
def _unit_time_order(
    schedule: str, num_stages: int, num_micro_batches: int, in_flight: int, clips: bool
) -> tuple[Action, ...]:
    left = [
        deque(
            stage_actions(
                schedule,
                stage=stage,
                num_stages=num_stages,
                num_micro_batches=num_micro_batches,
                in_flight=in_flight,
                clips=clips,
            )
        )
        for stage in range(num_stages)
    ]
    order: list[Action] = []
    done: set[Action] = set()
    while any(left):
        ready = [
            actions[0]
            for actions in left
            if actions
            and done.issuperset(
                awaited(actions[0], num_stages=num_stages, num_micro_batches=num_micro_batches, clips=clips)
            )
        ]
        assert ready, "stage lists lock each other up"
        ready.sort(key=lambda action: (action.kind is ActionKind.FORWARD, -action.stage))
        order += ready
        done.update(ready)
        for action in ready:
            left[action.stage].popleft()
    return tuple(order)
