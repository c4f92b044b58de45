"""More unlike devices than can be searched exactly: the plan is real, and the bound is a bound."""

from __future__ import annotations

import random

import pytest

from pipesvc.core import partition as partition_module
from pipesvc.core import partition_beyond
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.partition import Partition, PartitionConstraints, partition


def _costs(num_layers: int, num_devices: int, seed: int, memory_bytes: int = 0) -> Costs:
    rng = random.Random(seed)
    base = [rng.uniform(0.5, 1.5) for _ in range(num_layers)]
    devices = []
    for index in range(num_devices):
        speed = rng.uniform(0.5, 2.0)
        times = LayerTimes(
            forward_s=tuple(each / speed for each in base),
            backward_s=tuple(2 * each / speed for each in base),
            update_s=tuple(0.1 * each / speed for each in base),
        )
        devices.append(DeviceCost(worker=f"w{index}", device="cpu", times=times, memory_bytes=memory_bytes))
    layers = tuple(
        LayerCost(name=str(index), parameter_bytes=10, activation_bytes=1, output_bytes=100)
        for index in range(num_layers)
    )
    return Costs(layers=layers, devices=tuple(devices), default_link=LinkCost(latency_s=0.05, bytes_per_s=1e4))


def _plan(costs: Costs, m: int = 16, **constraints: object) -> Partition:
    return partition(costs, num_micro_batches=m, constraints=PartitionConstraints(**constraints))  # type: ignore[arg-type]


def test_twenty_unlike_devices_get_a_plan_within_a_fifth_of_its_bound() -> None:
    costs = _costs(40, 20, seed=1)
    plan = _plan(costs)
    assert len({stage.device_index for stage in plan.stages}) == len(plan.stages)
    assert plan.stages[-1].end_layer == 40
    assert 0 < plan.lower_bound_s <= plan.objective_s
    assert plan.gap < 0.2
    assert plan.runner_up is not None


@pytest.mark.parametrize("seed", range(5))
def test_bound_and_plan_enclose_the_exact_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = _costs(12, 7, seed, memory_bytes=0 if seed % 2 else 450)
    exact = _plan(costs)
    monkeypatch.setattr(partition_module, "MAX_STATES", 40)
    monkeypatch.setattr(partition_beyond, "MAX_STATES", 40)
    near = _plan(costs)
    assert near.lower_bound_s <= exact.objective_s * (1 + 1e-9)
    assert near.objective_s >= exact.objective_s * (1 - 1e-9)
    assert exact.gap == pytest.approx(0, abs=1e-8)


def test_given_places_are_kept_beyond_the_exact_search() -> None:
    plan = _plan(_costs(30, 16, seed=2), num_stages=8, places={"stage:0": "w5", "stage:3": "w7/cpu"})
    assert plan.stages[0].device_index == 5
    assert plan.stages[3].device_index == 7
