"""Which stage gets what of a micro-batch: bytes go only where they are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pipesvc.core import flow_json
from pipesvc.core.flow import Flow
from pipesvc.core.plan import LayerInfo, Plan, StagePlan
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.wire.links import Link
from pipesvc.worker.feeder.routes import FeederRoutes, routes_of


def make_plan(input_users: dict[str, tuple[int, ...]] | None) -> Plan:
    """Three units in three stages."""
    names = ("a", "b", "c")
    stages = tuple(
        StagePlan(
            index=index,
            label=f"stage:{index}",
            worker="w",
            device="cpu",
            first_layer=index,
            end_layer=index + 1,
            layer_names=(name,),
        )
        for index, name in enumerate(names)
    )
    text = ""
    if input_users is not None:
        units = tuple(LayerInfo(name=name, type="Linear") for name in names)
        text = flow_json.to_json(Flow(units=units, values=(), input_users=input_users, parameters={}))
    return Plan(stages=stages, schedule="1F1B", micro_batches=2, flow_json=text, feeder_worker="w", threads={})


def read_of(routes: FeederRoutes, inputs: Any) -> dict[str, list[bool]]:
    """Link -> of each tensor whether it goes there."""
    found = {}
    for link, value in routes.parcels(inputs, "labels"):
        if link != Link.parse("feeder>2/label"):
            values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
            found[str(link)] = [isinstance(each, Tensor) for each in values]
    return found


def test_a_list_of_layers_gets_its_inputs_as_they_are() -> None:
    inputs = (torch.ones(2, 3), None)
    parcels = list(routes_of(make_plan(None), has_labels=True).parcels(inputs, "labels"))
    assert [str(link) for link, _ in parcels] == ["feeder>0/input", "feeder>2/label"]
    assert parcels[0][1] is inputs
    assert parcels[1][1] == "labels"


def test_labels_go_nowhere_where_there_are_none() -> None:
    parcels = list(routes_of(make_plan(None), has_labels=False).parcels(torch.ones(2), None))
    assert [str(link) for link, _ in parcels] == ["feeder>0/input"]


@pytest.mark.parametrize(
    ("input_users", "inputs"),
    [
        ({"ids": (0,), "mask": (0, 2)}, {"ids": torch.ones(2), "mask": torch.ones(2)}),
        ({"0": (0,), "1": (0, 2)}, (torch.ones(2), torch.ones(2))),
        ({"0.user": (0,), "0.item": (0, 2)}, {"user": torch.ones(2), "item": torch.ones(2)}),
    ],
    ids=["by name", "by place", "one argument"],
)
def test_a10_each_stage_gets_the_tensors_that_it_reads(input_users: Any, inputs: Any) -> None:
    routes = routes_of(make_plan(input_users), has_labels=True)
    assert read_of(routes, inputs) == {
        "feeder>0/input": [True, True],
        "feeder>1/input": [False, False],
        "feeder>2/input": [False, True],
    }


def test_one_tensor_alone_is_the_one_argument() -> None:
    assert read_of(routes_of(make_plan({"0": (-1,)}), has_labels=True), torch.ones(2)) == {
        "feeder>0/input": [True],
        "feeder>1/input": [False],
        "feeder>2/input": [False],
    }


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"ids": torch.ones(2)}, "the tensors ids, and the plan was made with ids, mask"),
        ({"ids": torch.ones(2), "mask": None}, "the tensors ids, and"),
        ((torch.ones(2), torch.ones(2)), "the tensors 0, 1, and"),
        (torch.ones(2), r"the tensors \(alone\), and"),
        ({"ids": 1}, r"the tensors \(none\), and"),
    ],
)
def test_other_tensors_than_planned_are_refused_by_name(inputs: Any, text: str) -> None:
    routes = routes_of(make_plan({"ids": (0,), "mask": (2,)}), has_labels=True)
    with pytest.raises(PipesvcError, match=text) as caught:
        list(routes.parcels(inputs, None))
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_an_input_that_nobody_reads_is_known_all_the_same() -> None:
    routes = routes_of(make_plan({"ids": (0,), "unused": ()}), has_labels=True)
    read = read_of(routes, {"ids": torch.ones(2), "unused": torch.ones(2)})
    assert read["feeder>0/input"] == [True, False]
