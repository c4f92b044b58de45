"""From costs to stages and their devices: the cases with a name, demands and refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.flow import Flow, Joined
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo, SharedParameter
from pipesvc.core.partition import Partition, PartitionConstraints, partition
from pipesvc.errors import PipesvcError


def _times(layer_s: list[float], speed: float = 1.0) -> LayerTimes:
    """A third forward, two thirds backward."""
    return LayerTimes(
        forward_s=tuple(each / speed / 3 for each in layer_s),
        backward_s=tuple(each / speed * 2 / 3 for each in layer_s),
        update_s=(0.0,) * len(layer_s),
    )


def _costs(
    layer_s: list[float],
    speeds: list[float],
    *,
    link: LinkCost | None = None,
    devices: list[str] | None = None,
    marks: list[str] | None = None,
    memory_bytes: int = 0,
    **layer: Any,
) -> Costs:
    return Costs(
        layers=tuple(
            LayerCost(name=f"layer{index}", mark=marks[index] if marks else "", **layer)
            for index in range(len(layer_s))
        ),
        devices=tuple(
            DeviceCost(
                worker=f"w{index}",
                device=devices[index] if devices else "cpu",
                times=_times(layer_s, speed),
                memory_bytes=memory_bytes,
            )
            for index, speed in enumerate(speeds)
        ),
        default_link=link or LinkCost(),
    )


def _plan(costs: Costs, m: int = 8, method: Any = "auto", **constraints: Any) -> Partition:
    return partition(costs, num_micro_batches=m, method=method, constraints=PartitionConstraints(**constraints))


def _joined(costs: Costs, first: int, last: int) -> Costs:
    units = tuple(LayerInfo(name=layer.name, type="") for layer in costs.layers)
    joined = Joined(first=first, last=last, reason="they have one state", advice="Part it.")
    flow = Flow(units=units, values=(), input_users={}, parameters={}, joined=(joined,))
    return replace(costs, flow_json=to_json(flow))


def _refusal(costs: Costs, **rest: Any) -> str:
    with pytest.raises(PipesvcError) as caught:
        _plan(costs, **rest)
    return str(caught.value)


def _counts(plan: Partition) -> list[int]:
    return [stage.end_layer - stage.first_layer for stage in plan.stages]


def _places(plan: Partition) -> list[int]:
    return [stage.device_index for stage in plan.stages]


@pytest.mark.parametrize(("num_layers", "num_devices", "largest"), [(5, 4, 2), (42, 16, 3)])
def test_p01_equal_layers_leave_no_stage_empty(num_layers: int, num_devices: int, largest: int) -> None:
    plan = _plan(_costs([1.0] * num_layers, [1.0] * num_devices), num_stages=num_devices)
    assert len(plan.stages) == num_devices
    assert sum(_counts(plan)) == num_layers
    assert min(_counts(plan)) >= 1
    assert plan.bottleneck_s == pytest.approx(largest)


def test_p02_every_layer_is_placed_exactly_once() -> None:
    for method in ("auto", "uniform", "parameters", "type:Block"):
        plan = _plan(_costs([1.0] * 11, [1.0] * 4, type="Block", parameter_bytes=4), method=method)
        assert plan.stages[0].first_layer == 0
        assert plan.stages[-1].end_layer == 11
        assert all(before.end_layer == after.first_layer for before, after in pairwise(plan.stages))


def test_p03_given_boundaries_are_honoured_exactly() -> None:
    assert _counts(_plan(_costs([1.0] * 9, [1.0] * 4), method=[2, 5, 8])) == [2, 3, 3, 1]
    assert _counts(_plan(_costs([1.0] * 12, [1.0] * 4), method=[0, 3, 9, 12])) == [3, 6, 3]
    assert _counts(_plan(_costs([1.0] * 4, [1.0] * 4), method=["layer1"])) == [1, 3]
    assert _counts(_plan(_costs([1.0] * 4, [1.0] * 4), method=[0, 4])) == [4]


def test_p04_a_model_that_fits_only_without_the_state_of_adam_is_refused_with_the_sum() -> None:
    gibibyte = 2**30
    layer: dict[str, Any] = {
        "parameter_bytes": gibibyte,
        "gradient_bytes": gibibyte,
        "activation_bytes": gibibyte // 10,
    }
    costs = _costs([1.0] * 4, [1.0] * 2, memory_bytes=5 * gibibyte, **layer)
    assert _counts(_plan(costs)) == [2, 2]
    with_adam = _costs([1.0] * 4, [1.0] * 2, memory_bytes=5 * gibibyte, optimizer_bytes=2 * gibibyte, **layer)
    text = _refusal(with_adam)
    assert "would need on w0/cpu, with 2 micro-batches in flight, 2.0 GiB weights + 2.0 GiB gradients + " in text
    assert "4.0 GiB optimizer state + 0.4 GiB activations = 8.4 GiB of 5.0 GiB" in text
    assert "Start more workers" in text


def test_p10_the_bottleneck_of_unequal_layers_is_the_smallest_possible() -> None:
    plan = _plan(_costs([1, 1, 2, 1, 3, 1, 1, 1], [1.0] * 5), num_stages=5)
    assert plan.bottleneck_s == pytest.approx(3)
    assert min(_counts(plan)) >= 1
    assert plan.objective_s == pytest.approx(11 + 7 * 3)
    assert plan.lower_bound_s == pytest.approx(plan.objective_s)


def test_a_faster_device_gets_more_layers() -> None:
    plan = _plan(_costs([1.0] * 9, [1.0, 2.0]), m=100)
    assert sorted(zip(_places(plan), _counts(plan), strict=True)) == [(0, 3), (1, 6)]


def test_devices_stay_unused_where_hops_cost_more_than_they_gain() -> None:
    slow = LinkCost(latency_s=10.0)
    plan = _plan(_costs([1.0] * 4, [1.0] * 4, link=slow), m=4)
    assert _counts(plan) == [4]
    assert plan.objective_s == pytest.approx(16)
    assert plan.runner_up is not None
    assert _counts(plan.runner_up) == [2, 2]
    assert plan.runner_up.objective_s == pytest.approx(4 + 20 + 3 * 2)


def test_a_link_that_is_busy_for_longer_than_a_stage_is_the_bottleneck() -> None:
    """Layer 1 sends much, so the cut is beside it, and what is sent decides in one direction alone."""
    costs = _costs([1.0] * 4, [1.0] * 2, link=LinkCost(bytes_per_s=1.0))
    sizes = [1, 9, 3, 0]
    layers = tuple(
        LayerCost(name=str(index), output_bytes=size, output_gradient_bytes=size) for index, size in enumerate(sizes)
    )
    plan = _plan(Costs(layers=layers, devices=costs.devices, default_link=costs.default_link), m=50, num_stages=2)
    assert _counts(plan) == [1, 3]
    assert plan.bottleneck_s == pytest.approx(3)


def test_devices_are_placed_beside_those_they_reach_fast() -> None:
    near, far = LinkCost(latency_s=0.1), LinkCost(latency_s=5.0)
    links = {("w0", "w2"): near, ("w2", "w0"): near, ("w2", "w1"): near, ("w1", "w2"): near}
    costs = _costs([1.0] * 3, [1.0] * 3, link=far)
    plan = _plan(Costs(layers=costs.layers, devices=costs.devices, links=links, default_link=far), num_stages=3)
    assert _places(plan) == [0, 2, 1]
    assert plan.objective_s == pytest.approx(3 + 7 + 0.4)


def test_equal_devices_are_taken_in_order() -> None:
    assert _places(_plan(_costs([1.0] * 6, [1.0] * 3))) == [0, 1, 2]
    assert _places(_plan(_costs([1.0] * 6, [1.0] * 3), method="uniform")) == [0, 1, 2]


def test_the_update_counts_once_with_the_largest() -> None:
    times = LayerTimes(forward_s=(1.0, 1.0), backward_s=(1.0, 1.0), update_s=(3.0, 5.0))
    layers = (LayerCost(name="a"), LayerCost(name="b"))
    costs = Costs(layers=layers, devices=tuple(DeviceCost(worker=w, device="cpu", times=times) for w in "ab"))
    assert _plan(costs, m=3).objective_s == pytest.approx(4 + 2 * 2 + 5)


def test_marks_bind_layers_to_their_devices() -> None:
    marks = ["", "cpu", "", "gpu:1", "", "cpu:second"]
    costs = _costs([1.0] * 6, [1.0] * 4, devices=["cuda:0", "cpu", "cuda:0", "cpu"], marks=marks)
    plan = _plan(costs)
    assert _counts(plan) == [3, 2, 1]
    assert _places(plan) == [1, 2, 3]
    assert _places(_plan(costs, places={"cpu": "w3"})) == [3, 2, 1]
    assert "no device answers to mark 'gpu:1'" in _refusal(_costs([1.0] * 6, [1.0] * 4, marks=marks))
    on_cpus = _plan(_costs([1.0] * 6, [1.0] * 4, marks=marks), allow_cpu_for_gpu=True)
    assert _counts(on_cpus) == [3, 2, 1]
    assert "Use one of the two" in _refusal(costs, method="uniform")


def test_many_marked_gpus_need_no_search_over_all_of_them() -> None:
    marks = [f"gpu:{index}" for index in range(40)]
    plan = _plan(_costs([1.0] * 40, [1.0 + index for index in range(40)], devices=["cuda:0"] * 40, marks=marks))
    assert _places(plan) == list(range(40))
    assert plan.gap == pytest.approx(0)


def test_a_given_place_is_kept() -> None:
    costs = _costs([1.0] * 6, [1.0, 2.0, 3.0])
    assert _places(_plan(costs, places={"stage:0": "w0/cpu"}, num_stages=2))[0] == 0
    assert _places(_plan(costs, places={"stage:2": "w1"}))[2] == 1
    assert "which is not there" in _refusal(costs, places={"stage:0": "w9"})
    assert "which is not there" in _refusal(costs, places={"stage:0": "w1/cuda:0"})
    assert "which the plan does not have" in _refusal(costs, places={"first": "w1"})
    assert "two stages on one device" in _refusal(costs, places={"stage:0": "w1", "stage:1": "w1"})


def test_units_that_a_flow_keeps_together_stay_together() -> None:
    costs = _costs([1.0] * 6, [1.0] * 3)
    assert _counts(_plan(_joined(costs, 1, 4), num_stages=2)) in ([1, 5], [5, 1])
    assert _counts(_plan(_joined(costs, -1, 5))) == [6]
    assert "one state" in _refusal(_joined(costs, 0, 5), method="uniform", num_stages=3)
    assert "one state" in _refusal(_joined(costs, 0, 5), boundaries=(3,))
    assert _counts(_plan(_joined(costs, 0, 3), method="parameters")) == [4, 1, 1]


def test_a_copy_of_a_shared_parameter_counts_at_its_holder() -> None:
    """The last layer uses the table of the first: beside 5 more it does not fit, and beside the first it is free."""
    table = SharedParameter(name="table", num_bytes=90, is_trained=True)
    plain = _costs([1.0] * 6, [1.0] * 2, memory_bytes=100, parameter_bytes=10)
    assert _counts(_plan(plain, num_stages=2)) == [3, 3]
    first, *middle, last = plain.layers
    tied = replace(plain, layers=(replace(first, shared=(table,)), *middle, replace(last, shared=(table,))))
    assert _counts(_plan(tied, num_stages=2)) == [5, 1]
    assert _counts(_plan(replace(tied, devices=plain.devices[:1]))) == [6]
    # Of a module the measured gradient is the first user's, and a copy has one of its own.
    units = tuple(LayerInfo(name=layer.name, type="") for layer in plain.layers)
    shared = (replace(table, num_bytes=45),)
    flow = Flow(units=units, values=(), input_users={}, parameters={"table": (-1, 5)}, shared=shared)
    assert _counts(_plan(replace(plain, flow_json=to_json(flow)), num_stages=2)) == [5, 1]


def test_a_forced_boundary_is_there_among_others() -> None:
    plan = _plan(_costs([1.0] * 6, [1.0] * 3), boundaries=(1,))
    assert plan.stages[0].end_layer == 1
    assert len(plan.stages) == 3


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        ({"num_stages": 4}, "4 stages are asked for"),
        ({"num_stages": 1, "boundaries": (2,)}, "1 stages are asked for"),
        ({"boundaries": (7,)}, "do not cut 6 layers"),
        ({"method": [4, 2]}, "do not cut 6 layers"),
        ({"method": [2, "layer4"]}, "mix names and indices"),
        ({"method": [2], "boundaries": (3,)}, "no boundary at layer 3"),
        ({"m": 0}, "micro_batches is 0"),
    ],
)
def test_demands_that_cannot_be_met_are_refused_by_name(constraints: dict[str, Any], text: str) -> None:
    assert text in _refusal(_costs([1.0] * 6, [1.0] * 3), **constraints)


def test_a_profile_of_another_model_is_refused() -> None:
    costs = _costs([1.0] * 6, [1.0])
    assert "has times for [6] layers, the model has 5" in _refusal(
        Costs(layers=costs.layers[:5], devices=costs.devices)
    )
