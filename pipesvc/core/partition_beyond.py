"""Partitioning for more unlike devices than the exact program can hold: a plan, and how far it can be from the best.

The program over sets of devices doubles with each device. Here devices of similar speed are taken together until it
is small enough, each group as good as its best member in every respect. The optimum of that easier problem is a lower
bound for the real one, and its plan says how fast a device each stage should have. Real devices are then put in,
exchanged while that helps, and the layers are cut again, exactly, for the devices in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import prod
from typing import Final

from pipesvc.core.partition_problem import Kinds, Problem, kinds_of, score
from pipesvc.core.partition_search import Found, Search
from pipesvc.core.partition_states import states_of
from pipesvc.core.partition_table import Route

MAX_STATES: Final = 4096  # all sets of 12 devices
# Rounds of exchanges at most; each costs p x p evaluations.
_MAX_ROUNDS: Final = 2


def merged(problem: Problem, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups put together, neighbours in speed that differ least first, until the program is small enough."""
    devices = problem.costs.devices

    def total_s(group: Sequence[int]) -> float:
        times = devices[group[0]].times
        return sum(times.forward_s) + sum(times.backward_s)

    left = sorted(map(list, groups), key=total_s)
    speeds = [(total_s(group), total_s(group)) for group in left]  # the fastest and the slowest of each
    while prod(len(group) + 1 for group in left) > MAX_STATES and len(left) > 1:
        ratios = [slow[1] / fast[0] if fast[0] else float(slow[1] > 0) for fast, slow in pairwise(speeds)]
        index = ratios.index(min(ratios))
        left[index : index + 2] = [sorted(left[index] + left[index + 1])]
        speeds[index : index + 2] = [(speeds[index][0], speeds[index + 1][1])]
    return left


def concrete(problem: Problem, kinds: Kinds, route: Route) -> Found | None:
    """A plan on real devices that follows a route over groups of them, or None where no assignment was found.

    The kinds of the result are those of `singles(problem)`: one per device.
    """
    places = _assign(problem, kinds, route)
    if places is None:
        return None
    places = _exchanged(problem, singles(problem), route.edges, places)
    num_stages = len(places)
    fixed = replace(
        problem,
        stage_counts=(num_stages,),
        stage_devices={stage: frozenset([device]) for stage, device in enumerate(places)},
    )
    chosen = kinds_of(fixed, [[device] for device in places])
    built = states_of(fixed, chosen, MAX_STATES)
    assert built is not None, "a given order of devices has one state per stage"
    found = Search(problem=fixed, kinds=chosen, states=built).run()
    if found is None:
        return None
    return replace(found, route=Route(found.route.edges, tuple(places[kind] for kind in found.route.kinds)))


def singles(problem: Problem) -> Kinds:
    """Each device a kind of its own."""
    return kinds_of(problem, [[index] for index in range(len(problem.costs.devices))])


def _assign(problem: Problem, kinds: Kinds, route: Route) -> list[int] | None:
    """A device of its kind for each stage, that may hold it: a matching, by augmenting paths."""
    num_stages = len(route.kinds)
    holder: dict[int, int] = {}  # device -> stage

    def place(stage: int, tried: set[int]) -> bool:
        for device in kinds.members[route.kinds[stage]]:
            if device in tried or not problem.fits(
                stage, num_stages, route.edges[stage], route.edges[stage + 1], device
            ):
                continue
            tried.add(device)
            if device not in holder or place(holder[device], tried):
                holder[device] = stage
                return True
        return False

    if not all(place(stage, set()) for stage in range(num_stages)):
        return None
    return sorted(holder, key=lambda device: holder[device])


def _exchanged(problem: Problem, kinds: Kinds, edges: Sequence[int], places: list[int]) -> list[int]:
    """Better places for the same cut: two stages exchange devices, or one takes an unused device."""
    num_stages = len(places)
    num_devices = len(problem.costs.devices)

    def objective_s(candidate: Sequence[int]) -> float:
        return score(kinds, problem.crossing, edges, candidate).objective_s(problem.num_micro_batches)

    def fits(stage: int, device: int) -> bool:
        return problem.fits(stage, num_stages, edges[stage], edges[stage + 1], device)

    best_s = objective_s(places)
    for _ in range(_MAX_ROUNDS):
        before_s = best_s
        order = [*places, *(device for device in range(num_devices) if device not in places)]
        for one, other in combinations(range(num_devices), 2):
            if one >= num_stages:
                break
            candidate = list(order)
            candidate[one], candidate[other] = order[other], order[one]
            changed_s = objective_s(candidate[:num_stages])
            moves = [stage for stage in (one, other) if stage < num_stages]
            if changed_s < best_s * (1 - 1e-9) and all(fits(stage, candidate[stage]) for stage in moves):
                order, best_s = candidate, changed_s
        places = order[:num_stages]
        if best_s == before_s:
            break
    return places
