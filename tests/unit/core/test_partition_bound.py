"""The bound is below what the exact program finds, whatever the prices, and leaves what it finds as it is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.partition import PartitionConstraints, one_f_one_b
from pipesvc.core.partition_bound import bound
from pipesvc.core.partition_capped import Capped, Caps
from pipesvc.core.partition_constraints import problem_of
from pipesvc.core.partition_problem import INFINITY, alike, kinds_of, score
from pipesvc.core.partition_states import States, states_of
from pipesvc.core.partition_table import cheapest


def _states(seed: int, *, are_equal: bool = False) -> States:
    """Seven layers on five devices, some of whose links are slow and some of whose memories are small."""
    rng = random.Random(seed)
    layers = tuple(
        LayerCost(
            name=str(index), parameter_bytes=rng.randint(1, 9), activation_bytes=3, output_bytes=rng.randint(0, 5)
        )
        for index in range(7)
    )
    devices = []
    for index in range(5):
        times = [1.0 if are_equal else rng.uniform(0.5, 2.0) for _ in layers]
        layer_times = LayerTimes(forward_s=tuple(times), backward_s=tuple(times), update_s=tuple(times))
        memory_bytes = 0 if are_equal else rng.choice([0, 40, 60])
        devices.append(DeviceCost(worker=f"w{index}", device="cpu", times=layer_times, memory_bytes=memory_bytes))
    links = {(f"w{index}", f"w{index + 1}"): LinkCost(latency_s=0.1, bytes_per_s=5.0) for index in range(4)}
    problem = problem_of(
        Costs(layers=layers, devices=tuple(devices), links={} if are_equal else links),
        num_micro_batches=4,
        method="auto",
        constraints=PartitionConstraints(),
        in_flight=one_f_one_b(4),
    )
    built = states_of(problem, kinds_of(problem, alike(problem)), 4096)
    assert built is not None
    return built[0]


@pytest.mark.parametrize("seed", range(20))
def test_no_route_is_below_the_bound_and_none_within_the_limit_is_lost(seed: int) -> None:
    states, rng = _states(seed), np.random.default_rng(seed)
    for bottleneck_s in (3.0, 5.0, 8.0, INFINITY):
        capped = Capped(states, Caps(bottleneck_s=bottleneck_s))
        exact = cheapest(capped)
        for prices_s in (np.zeros(len(states.sizes)), rng.uniform(0, 3, len(states.sizes))):
            below = bound(capped, prices_s, enough_s=INFINITY, reach_s=1.0)
            if exact is None:
                assert cheapest(capped, below=below) is None
                continue
            total_s = score(states.kinds, states.problem.crossing, exact.edges, exact.kinds).total_s
            assert below.total_s <= total_s * (1 + 1e-9)
            assert cheapest(capped, below=below, limit_s=total_s) == exact
            assert cheapest(capped, below=below, limit_s=total_s * (1 - 1e-6)) is None


def test_prices_raise_the_bound_where_one_device_is_wanted_twice() -> None:
    states = _states(1)
    capped = Capped(states, Caps(bottleneck_s=4.0))
    free = bound(capped, np.zeros(5), enough_s=0.0, reach_s=1.0)
    priced = bound(capped, np.zeros(5), enough_s=INFINITY, reach_s=1.0)
    assert priced.total_s > free.total_s
    assert priced.prices_s.any()


def test_the_bound_of_equal_devices_is_the_truth() -> None:
    capped = Capped(_states(0, are_equal=True), Caps(bottleneck_s=4.0))
    below = bound(capped, np.zeros(1), enough_s=INFINITY, reach_s=1.0)
    assert below.total_s == pytest.approx(14.0)
