"""The cuts that are worth a simulation where the job's strategy leaves its boundaries open.

The partitioner searches all cuts and places by a formula that a step obeys only roughly, so its two best are both
handed on. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from pipesvc.client.job import ScheduleFile, Strategy
from pipesvc.core.costs import Costs
from pipesvc.core.partition import InFlight, Partition, PartitionConstraints, partition
from pipesvc.core.partition_methods import layer_infos
from pipesvc.core.plan import StrategySettings
from pipesvc.core.schedules import FILE
from pipesvc.core.stages import cut
from pipesvc.core.step_lists import step_lists
from pipesvc.errors import PipesvcError


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

    Where the schedule is open, the cut is made for 1F1B as it is usual, or else for the fewest micro-batches in flight
    that there can be. Raises what the partitioner refuses.
    """
    if not isinstance(asked.boundaries, str):
        return [asked]
    if not asked.pipeline:
        return [replace(asked, boundaries=())]
    search = partial(
        partition,
        costs,
        num_micro_batches=asked.micro_batches * accumulate,
        method=asked.boundaries,
        constraints=PartitionConstraints(
            num_stages=asked.num_stages or 0, places=asked.placement, allow_cpu_for_gpu=asked.allow_cpu_for_gpu
        ),
    )
    if asked.has_open_schedule:
        try:
            found = search()
        except PipesvcError:
            found = search(in_flight=lambda stage, num_stages: 1)
    else:
        found = search(in_flight=_in_flight(asked, accumulate))
    return [_with_cut(asked, costs, each) for each in (found, found.runner_up) if each is not None]


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
