"""The text form of costs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.coding import TypedBytes
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.costs_json import from_json, to_json
from pipesvc.core.layer_info import SharedParameter
from pipesvc.errors import ErrorCode, PipesvcError

TIMES = LayerTimes(forward_s=(0.5, 1.0), backward_s=(1.0, 2.0), update_s=(0.25, 0.0))
COSTS = Costs(
    layers=(LayerCost(name="0", type="Linear", parameter_bytes=8, activation_bytes=4), LayerCost(name="1", mark="cpu")),
    devices=(DeviceCost(worker="a", device="cpu", times=TIMES, memory_bytes=100),),
    links={("a", "b"): LinkCost(latency_s=0.001, bytes_per_s=1e9), ("b", "a"): LinkCost()},
    micro_batch_rows=4,
)
NAMES = st.text(max_size=5)
SIZES = st.integers(min_value=0, max_value=2**62)
SECONDS = st.floats(min_value=0, max_value=1e6)
LAYERS = st.builds(
    LayerCost,
    name=NAMES,
    type=NAMES,
    mark=NAMES,
    **dict.fromkeys(["parameter_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes"], SIZES),
    **dict.fromkeys(["activation_bytes", "output_bytes", "output_gradient_bytes"], SIZES),
    **dict.fromkeys(
        ["outputs", "output_gradients"], st.lists(st.builds(TypedBytes, NAMES, SIZES), max_size=2).map(tuple)
    ),
    shared=st.lists(st.builds(SharedParameter, name=NAMES, num_bytes=SIZES, is_trained=st.booleans()), max_size=2).map(
        tuple
    ),
)
LINKS = st.builds(LinkCost, latency_s=SECONDS, bytes_per_s=st.floats(min_value=1e-3), way=NAMES)


def devices(num_layers: int) -> st.SearchStrategy[DeviceCost]:
    column = st.lists(SECONDS, min_size=num_layers, max_size=num_layers).map(tuple)
    times = st.builds(
        LayerTimes,
        forward_s=column,
        backward_s=column,
        update_s=column,
        input_backward_s=column | st.just(()),
        weight_backward_s=column | st.just(()),
    )
    return st.builds(DeviceCost, worker=NAMES, device=NAMES, times=times, memory_bytes=SIZES)


@st.composite
def costs(draw: st.DrawFn) -> Costs:
    layers = tuple(draw(st.lists(LAYERS, max_size=3)))
    return Costs(
        layers=layers,
        devices=tuple(draw(st.lists(devices(len(layers)), max_size=2))),
        links=draw(st.dictionaries(st.tuples(NAMES, NAMES), LINKS, max_size=3)),
        default_link=draw(LINKS),
        micro_batch_rows=draw(SIZES),
    )


@given(costs())
def test_text_parses_back(value: Costs) -> None:
    assert from_json(to_json(value)) == value
    assert from_json(to_json(value, indent=1)) == value


def test_equal_costs_have_equal_text_in_one_line() -> None:
    swapped = replace(COSTS, links=dict(reversed(list(COSTS.links.items()))))
    assert to_json(swapped) == to_json(COSTS)
    assert "\n" not in to_json(COSTS)


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(COSTS)), **changes})


UNMEASURED: dict[str, list[float]] = {"skip_s": [], "input_backward_s": [], "weight_backward_s": []}


def _device(**changes: Any) -> dict[str, Any]:
    device: dict[str, Any] = json.loads(to_json(COSTS))["devices"][0]
    return {**device, **changes}


def _link(**changes: Any) -> dict[str, Any]:
    return {"sender": "a", "receiver": "b", "latency_s": 0.1, "bytes_per_s": 1.0, "way": "", **changes}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "no object for a Costs"),
        ("{}", "differs from a Costs in"),
        (_changed(surprise=1), "differs from a Costs in surprise"),
        (_changed(micro_batch_rows=-1), "wrong value for micro_batch_rows"),
        (_changed(micro_batch_rows=True), "wrong value for micro_batch_rows"),
        (_changed(layers=[{}, {}]), "differs from a LayerCost in"),
        (_changed(layers="01"), "wrong value for layers"),
        (_changed(layers=[]), "has 2 values in forward_s of a/cpu and 0 layers"),
        (_changed(devices=[_device(times=[])]), "no object for a LayerTimes"),
        (_changed(devices=[_device(worker=1)]), "wrong value for worker of a DeviceCost: 1"),
        (
            _changed(devices=[_device(times={"forward_s": [1, "2"], "backward_s": [], "update_s": [], **UNMEASURED})]),
            "forward_s",
        ),
        (
            _changed(devices=[_device(times={"forward_s": [1, None], "backward_s": [], "update_s": [], **UNMEASURED})]),
            "forward_s",
        ),
        (_changed(links=[{"latency_s": 0.0}]), "a link without sender or receiver"),
        (_changed(links=[_link(sender=3)]), "wrong value for the sender of a link"),
        (_changed(links=[_link(bytes_per_s=0)]), "wrong value for bytes_per_s"),
        (_changed(links=[_link(latency_s=float("nan"))]), "wrong value for latency_s"),
        (_changed(links=[_link(surprise=1)]), "differs from a LinkCost in surprise"),
        (_changed(default_link=None), "no object for a LinkCost"),
    ],
)
def test_a_wrong_text_is_refused_by_the_name_of_the_field(text: str, said: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        from_json(text)
    assert caught.value.code is ErrorCode.INVALID_PLAN
    assert said in str(caught.value)


def test_costs_of_before_backwards_were_split_are_refused_by_name() -> None:
    """So a coordinator measures again what it has kept (see `profile_store`)."""
    times = {"forward_s": [1.0, 1.0], "backward_s": [2.0, 2.0], "update_s": [0.0, 0.0]}
    with pytest.raises(PipesvcError, match="differs from a LayerTimes in input_backward_s, skip_s, weight_backward_s"):
        from_json(_changed(devices=[_device(times=times)]))
    assert from_json(_changed(devices=[_device(times=times | UNMEASURED)])).devices[0].times.input_backward_s == ()
    with pytest.raises(PipesvcError, match="has 1 values in weight_backward_s of a/cpu and 2 layers"):
        from_json(_changed(devices=[_device(times=times | UNMEASURED | {"weight_backward_s": [1.0]})]))
