"""The cuts that are worth a simulation where the job's strategy leaves its boundaries open.

The partitioner searches all cuts and places by a formula that a step obeys only roughly, so its two best are both
handed on. Where several stages lie on one device, it is asked as `plan_places` says. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from pipesvc.client.codec import coding_of
from pipesvc.client.job import ScheduleFile, Strategy
from pipesvc.client.plan_places import repeated, shared_places
from pipesvc.core.costs import Costs
from pipesvc.core.partition import InFlight, Partition, PartitionConstraints, partition
from pipesvc.core.partition_methods import AUTO, layer_infos
from pipesvc.core.plan import StrategySettings
from pipesvc.core.schedule_search import SHARED
from pipesvc.core.schedules import FILE, homes, num_stages_by_default, shares_workers, splits_backward
from pipesvc.core.stages import cut
from pipesvc.core.step_lists import step_lists
from pipesvc.errors import PipesvcError


class Scored(NamedTuple):
    """A strategy with its cut, and the partitioner's objective for it."""

    objective_s: float
    strategy: Strategy


def settings_of(strategy: Strategy, accumulate: int) -> StrategySettings:
    """The same for the planner, whose steps have so many mini-batches; only where the boundaries are given."""
    boundaries = strategy.boundaries
    return StrategySettings(
        is_pipelined=strategy.pipeline,
        micro_batches=strategy.micro_batches * accumulate,
        schedule=FILE if isinstance(strategy.schedule, ScheduleFile) else strategy.schedule,
        schedule_text=strategy.schedule.text if isinstance(strategy.schedule, ScheduleFile) else "",
        num_stages=strategy.num_stages or 0,
        boundaries=tuple(each for each in boundaries if isinstance(each, str))
        or tuple(each for each in boundaries if isinstance(each, int)),
        placement=dict(strategy.placement),
        allow_cpu_for_gpu=strategy.allow_cpu_for_gpu,
        in_flight=strategy.in_flight or 0,
    )


def cuts_of(asked: Strategy, accumulate: int, costs: Costs) -> list[Strategy]:
    """The strategy with its boundaries: as given, or the two best that the partitioner finds, with their places.

    Where the schedule is open, the cut is made for 1F1B as it is usual, or else for as many micro-batches in flight as
    fit. Of a marked model only the places are open, and those that any plan would have are among what is returned.
    Raises what the partitioner refuses.
    """
    if not isinstance(asked.boundaries, str):
        return [asked]
    is_marked = any(layer.mark for layer in costs.layers)
    usual = [replace(asked, boundaries=())] if is_marked and asked.boundaries == AUTO else []
    if usual and _shares_workers(asked):
        return usual
    try:
        find = _shared if _shares_workers(asked) else _partitions
        found = find(asked, accumulate, costs)
    except PipesvcError:
        if not usual:
            raise
        found = []
    return [*(each.strategy for each in found), *usual]


def _shares_workers(strategy: Strategy) -> bool:
    return not strategy.has_open_schedule and shares_workers(settings_of(replace(strategy, boundaries=()), 1).schedule)


def _partitions(asked: Strategy, accumulate: int, costs: Costs) -> list[Scored]:
    """For a schedule under which a stage may lie anywhere."""
    search = partial(_search, asked, accumulate, costs, asked.placement, asked.num_stages or 0)
    if not asked.has_open_schedule:
        return search(_in_flight(asked, accumulate))
    try:
        return search(None)
    except PipesvcError:
        return _with_fewer_in_flight(search, min(asked.micro_batches * accumulate, len(costs.layers)))


def _with_fewer_in_flight(search: Callable[[InFlight], list[Scored]], usual: int) -> list[Scored]:
    """With the most in flight for which there is a cut."""

    @cache
    def found(cap: int) -> list[Scored]:
        try:
            return search(lambda stage, num_stages: min(cap, num_stages - stage))
        except PipesvcError:
            return []

    num_fitting = bisect_left(range(1, usual), True, key=lambda cap: not found(cap))
    return found(num_fitting) if num_fitting else search(lambda stage, num_stages: 1)


def _shared(asked: Strategy, accumulate: int, costs: Costs) -> list[Scored]:
    """For a schedule that says which stages lie on one worker: the two best over the orders of workers."""
    settings = settings_of(replace(asked, boundaries=()), accumulate)
    schedule, text = settings.schedule, settings.schedule_text
    num_workers = len({device.worker for device in costs.devices})
    num_stages = asked.num_stages or num_stages_by_default(schedule, num_workers, text, num_layers=len(costs.layers))
    numbers = homes(schedule, num_stages=num_stages, num_workers=num_workers, text=text)
    lists = step_lists(schedule, homes=[*map(str, numbers)], num_micro_batches=settings.micro_batches, text=text)
    found: list[Scored] = []
    refusals = []
    for places in shared_places(numbers, asked.placement, costs) if num_stages <= len(costs.layers) else ():
        try:
            # The search asks too for a stage that is not there, and then the number makes no difference.
            found += _search(asked, accumulate, costs, places, num_stages, lambda stage, _: lists.bounds.get(stage, 1))
        except PipesvcError as error:
            refusals.append(error)
    if not found:
        if refusals:
            raise refusals[0]
        return [Scored(0.0, replace(asked, boundaries=(), num_stages=num_stages))]  # the planner says why
    return sorted(found, key=lambda each: each.objective_s)[:2]


def _search(
    asked: Strategy,
    accumulate: int,
    costs: Costs,
    places: Mapping[str, str],
    num_stages: int,
    in_flight: InFlight | None,
) -> list[Scored]:
    """The two best cuts for these places. Stages on one device share its memory, in equal parts if that will do."""
    equal, whole = (repeated(costs, places, shares_memory=shares_memory) for shares_memory in (True, False))
    cut_in = partial(
        partition,
        num_micro_batches=asked.micro_batches * accumulate,
        method=str(asked.boundaries),
        constraints=PartitionConstraints(
            num_stages=num_stages,
            places=places,
            allow_cpu_for_gpu=asked.allow_cpu_for_gpu,
            coding=coding_of(asked.codec),
        ),
        in_flight=in_flight,
    )
    try:
        best = cut_in(equal)
    except PipesvcError:
        if equal == whole:
            raise
        best = cut_in(whole)
    return [
        Scored(each.objective_s, _with_cut(asked, whole, each)) for each in (best, best.runner_up) if each is not None
    ]


def shared_cuts_of(asked: Strategy, accumulate: int, costs: Costs) -> list[Strategy]:
    """For an open schedule, the strategies with several stages on each worker.

    Not where the user has said by marks or places which worker holds what.
    """
    is_placed = asked.placement or any(layer.mark for layer in costs.layers)
    if not asked.has_open_schedule or not asked.pipeline or is_placed:
        return []
    num_cut = len(asked.boundaries) + 1 if asked.boundaries and not isinstance(asked.boundaries, str) else 0
    num_stages = num_cut or asked.num_stages or 2 * len({device.worker for device in costs.devices})
    if not 4 <= num_stages <= len(costs.layers):  # two on each of two workers
        return []
    found: list[Strategy] = []
    for schedule in SHARED:
        if not (asked.compile and splits_backward(schedule)):
            with suppress(PipesvcError):
                found += cuts_of(replace(asked, schedule=schedule), accumulate, costs)
    return found


def _in_flight(strategy: Strategy, accumulate: int) -> InFlight:
    """The micro-batches alive on a stage under a schedule that is given."""
    settings = settings_of(replace(strategy, boundaries=()), accumulate)

    def num_alive(stage: int, num_stages: int) -> int:
        lists = step_lists(
            settings.schedule,
            homes=[str(each) for each in range(num_stages)],
            num_micro_batches=settings.micro_batches,
            in_flight=settings.in_flight,
            text=settings.schedule_text,
        )
        return lists.bounds[stage]

    return cache(num_alive)


def _with_cut(asked: Strategy, costs: Costs, found: Partition) -> Strategy:
    is_marked = any(layer.mark for layer in costs.layers)
    labels = [stage.label for stage in cut(StrategySettings(), layer_infos(costs.layers), 0)] if is_marked else []
    places = [costs.devices[stage.device_index] for stage in found.stages]
    return replace(
        asked,
        boundaries=() if is_marked else tuple(costs.layers[stage.first_layer].name for stage in found.stages[1:]),
        num_stages=1 if len(places) == 1 and not is_marked else None,
        placement={
            labels[index] if is_marked else f"stage:{index}": f"{place.worker}/{place.device}"
            for index, place in enumerate(places)
        },
    )
