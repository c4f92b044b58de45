"""From costs to a cut of the layers and the device of each stage: the best there is, or a plan with a proven bound.

Balancing by count or by parameters, or by times on one device, is wrong for unlike hosts: the slowest stage on its own
device decides, hops cost as much as layers, and a stage must fit. All of that is one problem here. Devices that are
alike are found and counted rather than told apart, so one exact program serves 64 equal devices and 12 unlike ones.
More unlike devices than that get a good plan with a lower bound beside it.

Units are seconds and bytes. The objective is defined in `partition_problem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pipesvc.core.costs import Costs
from pipesvc.core.memory import against_text, bytes_text
from pipesvc.core.partition_beyond import MAX_STATES, concrete, merged, singles
from pipesvc.core.partition_capped import Capped, Caps
from pipesvc.core.partition_constraints import PartitionConstraints, problem_of
from pipesvc.core.partition_memory import memory_parts
from pipesvc.core.partition_methods import AUTO
from pipesvc.core.partition_problem import InFlight, Kinds, Problem, alike, kinds_of, score
from pipesvc.core.partition_search import Found, Search
from pipesvc.core.partition_states import states_of
from pipesvc.core.partition_table import Route, cheapest
from pipesvc.errors import ErrorCode, LayersError, PipesvcError, Where

__all__ = ["InFlight", "Partition", "PartitionConstraints", "PlacedStage", "one_f_one_b", "partition"]

# Halvings of the factor by which memory would have to grow: to 0.1 %.
_NUM_HALVINGS: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedStage:
    """Layers [first, end) on one device."""

    first_layer: int
    end_layer: int
    device_index: int  # into `Costs.devices`


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A cut with its devices, and what it lost to or won against."""

    stages: tuple[PlacedStage, ...]
    objective_s: float
    bottleneck_s: float
    lower_bound_s: float  # no plan under the same demands is below it
    runner_up: Partition | None = None  # the best found with another number of stages or other devices

    @property
    def gap(self) -> float:
        """By what part of the bound the objective may exceed the best; 0 where the plan is proven to be the best."""
        return max(0.0, self.objective_s / self.lower_bound_s - 1) if self.lower_bound_s > 0 else 0.0


def one_f_one_b(num_micro_batches: int) -> InFlight:
    """The bound of 1F1B: micro-batches alive on a stage."""
    return lambda stage, num_stages: min(num_micro_batches, num_stages - stage)


def partition(
    costs: Costs,
    *,
    num_micro_batches: int,
    method: str | Sequence[int | str] = AUTO,
    constraints: PartitionConstraints | None = None,
    in_flight: InFlight | None = None,
) -> Partition:
    """The best cut and places under these demands.

    `method` is "auto", "uniform", "parameters", "type:REGEX[:WEIGHT]|...", or the boundaries themselves: the first
    layer of each stage but the first, as indices or names, with or without the ends (`[0, 3, 9, 12]`). All but "auto"
    give the cut alone, and the devices are still searched. `in_flight` is 1F1B's bound where it is not given.

    Of equal plans the one with fewer stages wins, then earlier devices for earlier stages. Raises INVALID_PLAN where
    nothing fits, with the sum of the tightest stage, and what `problem_of` raises.
    """
    problem = problem_of(
        costs,
        num_micro_batches=num_micro_batches,
        method=method,
        constraints=constraints or PartitionConstraints(),
        in_flight=in_flight or one_f_one_b(num_micro_batches),
    )
    groups = alike(problem)
    kinds = kinds_of(problem, groups)
    is_exact = True
    built = states_of(problem, kinds, MAX_STATES)
    if built is None:
        is_exact = False
        kinds = kinds_of(problem, merged(problem, groups))
        built = states_of(problem, kinds, MAX_STATES)
        assert built is not None, "merged kinds are few"
    search = Search(problem=problem, kinds=kinds, states=built)
    best = search.run()
    if best is None:
        raise _refusal(problem, kinds)
    other = search.run(excluded=best.route.used(len(kinds.members)))
    plans = [_partition(problem, kinds, found, is_exact=is_exact) for found in (best, other) if found is not None]
    # On real devices the two may change places.
    ranked = sorted((plan for plan in plans if plan is not None), key=lambda plan: plan.objective_s)
    if not ranked:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"no plan was found on {len(costs.devices)} unlike devices, nor shown to be impossible",
            advice="Give more devices the same settings, place some stages by hand, or use fewer devices.",
        )
    return replace(ranked[0], lower_bound_s=best.lower_bound_s, runner_up=ranked[1] if len(ranked) > 1 else None)


def _partition(problem: Problem, kinds: Kinds, found: Found, *, is_exact: bool) -> Partition | None:
    """A route as a plan on real devices. Devices of a kind are taken in order."""
    route, lower_bound_s = found.route, found.lower_bound_s
    if not is_exact:
        real = concrete(problem, kinds, route)
        if real is None:
            return None
        route, kinds = real.route, singles(problem)
    parts = score(kinds, problem.crossing, route.edges, route.kinds)
    free = [list(members) for members in kinds.members]
    return Partition(
        stages=tuple(
            PlacedStage(
                first_layer=route.edges[stage], end_layer=route.edges[stage + 1], device_index=free[kind].pop(0)
            )
            for stage, kind in enumerate(route.kinds)
        ),
        objective_s=parts.objective_s(problem.num_micro_batches),
        bottleneck_s=parts.bottleneck_s,
        lower_bound_s=lower_bound_s,
    )


def _refusal(problem: Problem, kinds: Kinds) -> PipesvcError:
    """Why there is no plan: memory, with the tightest stage of the plan that nearly fits, or the demands themselves."""
    nearest = _nearly_fitting(problem, kinds)
    if nearest is None:
        cut = [
            f"{sender} and {receiver}" for (sender, receiver), link in problem.costs.links.items() if not link.is_open
        ]
        return LayersError(
            ErrorCode.INVALID_PLAN,
            f"{len(problem.costs.layers)} layers cannot be placed on {len(problem.costs.devices)} devices as asked"
            f"{f'; there is no way between workers {cut[0]}' if cut else ''}",
            advice="Marks, given places, ties and boundaries leave no way: release one of them, or start more workers.",
        )
    num_stages = len(nearest.kinds)
    sums = []
    for stage, kind in enumerate(nearest.kinds):
        alive = problem.alive(stage, num_stages)
        parts = memory_parts(problem.memory, nearest.edges[stage], nearest.edges[stage + 1], alive)
        sums.append((sum(parts.values()) / kinds.memory_bytes[kind], stage, kind, alive.here, parts))
    _, stage, kind, num_alive, parts = max(sums, key=lambda each: each[0])
    device = problem.costs.devices[kinds.members[kind][0]]
    layers = problem.costs.layers[nearest.edges[stage] : nearest.edges[stage + 1]]
    names = layers[0].name if len(layers) == 1 else f"{layers[0].name} to {layers[-1].name}"
    shown = " + ".join(f"{bytes_text(int(size))} {name}" for name, size in parts.items() if size)
    return LayersError(
        ErrorCode.INVALID_PLAN,
        f"no cut fits into memory. In the one that is nearest, stage {stage} of {num_stages} (layers {names}) would "
        f"need on {device.worker}/{device.device}, with {num_alive} micro-batches in flight, {shown} = "
        f"{against_text(int(sum(parts.values())), int(kinds.memory_bytes[kind]))}",
        advice="Start more workers, give this one more memory, use smaller micro-batches or fewer in flight, "
        "or an optimizer with less state.",
        where=Where(stage=stage, worker=device.worker),
    )


def _nearly_fitting(problem: Problem, kinds: Kinds) -> Route | None:
    """The route that fits if all memories are multiplied by the smallest factor for which there is one."""

    def route(factor: float) -> Route | None:
        scaled = replace(kinds, memory_bytes=kinds.memory_bytes * factor)
        built = states_of(problem, scaled, MAX_STATES) or []
        return next((found for states in built if (found := cheapest(Capped(states, Caps()))) is not None), None)

    if route(float("inf")) is None:
        return None
    low, high = 1.0, 2.0
    while (found := route(high)) is None:
        low, high = high, 2 * high
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        nearer = route(middle)
        low, high, found = (middle, high, found) if nearer is None else (low, middle, nearer)
    return found
