"""The text form of flows: nothing is lost on the way, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.flow import Flow, Joined, Value
from pipesvc.core.flow_json import from_json, to_json
from pipesvc.core.layer_info import LayerInfo, SharedParameter
from pipesvc.errors import ErrorCode, PipesvcError

NUM_UNITS = 4
NAMES = st.text(max_size=5)
SIZES = st.integers(min_value=0)
POSITIONS = st.integers(-1, NUM_UNITS - 1)
USERS = st.lists(POSITIONS, max_size=3).map(tuple)
SHARED = st.lists(st.builds(SharedParameter, name=NAMES, num_bytes=SIZES, is_trained=st.booleans()), max_size=2).map(
    tuple
)
UNITS = st.builds(
    LayerInfo,
    name=NAMES,
    type=NAMES,
    mark=NAMES,
    parameter_bytes=st.integers(),
    buffer_bytes=st.integers(),
    shared=SHARED,
)
VALUES = st.builds(
    Value,
    key=NAMES,
    producer=POSITIONS,
    users=USERS,
    shape=st.lists(SIZES, max_size=3).map(tuple),
    dtype=NAMES,
    num_bytes=SIZES,
    is_differentiable=st.booleans(),
)
FLOWS = st.builds(
    Flow,
    units=st.lists(UNITS, min_size=NUM_UNITS, max_size=NUM_UNITS).map(tuple),
    values=st.lists(VALUES, max_size=3).map(tuple),
    input_users=st.dictionaries(NAMES, USERS, max_size=3),
    parameters=st.dictionaries(NAMES, USERS, max_size=3),
    buffers=st.dictionaries(NAMES, USERS, max_size=3),
    shared=SHARED,
    joined=st.lists(st.builds(Joined, first=POSITIONS, last=POSITIONS, reason=NAMES, advice=NAMES), max_size=2).map(
        tuple
    ),
    random_modules=st.lists(NAMES, max_size=2).map(tuple),
    random_operations=st.lists(NAMES, max_size=2).map(tuple),
)
FLOW = Flow(
    units=(LayerInfo(name="a", type="Linear", mark="cpu", parameter_bytes=8), LayerInfo(name="b", type="Linear")),
    values=(
        Value(key="1.0.0", producer=0, users=(1,), shape=(2, 3), dtype="float32", num_bytes=24, is_differentiable=True),
    ),
    input_users={"x": (-1, 0), "mask": (1,)},
    parameters={"a.weight": (0,), "b.weight": (1,)},
)


@given(FLOWS)
def test_text_parses_back(flow: Flow) -> None:
    again = from_json(to_json(flow))
    assert again == flow
    assert to_json(again) == to_json(flow)


def test_the_inputs_keep_their_order() -> None:
    """The feeder knows a tensor of the inputs by its place alone."""
    assert list(from_json(to_json(FLOW)).input_users) == ["x", "mask"]


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(FLOW)), **changes})


def _value(**changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(to_json(FLOW))["values"][0]
    return {**raw, **changes}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "no object for a Flow"),
        ("{}", "differs from a Flow in"),
        (_changed(surprise=1), "differs from a Flow in surprise"),
        (_changed(units=["a"]), "no object for a LayerInfo"),
        (_changed(units=[{"name": "a"}]), "differs from a LayerInfo in"),
        (_changed(values=[_value(producer="0")]), "wrong value for producer of a Value: '0'"),
        (_changed(values=[_value(producer=True)]), "wrong value for producer of a Value: True"),
        (_changed(values=[_value(is_differentiable=1)]), "wrong value for is_differentiable of a Value"),
        (_changed(values=[_value(shape=[2.0])]), "wrong value for shape of a Value"),
        (_changed(values=[_value(users=[2])]), "names unit 2 of 2 in value 1.0.0"),
        (_changed(values=[_value(producer=-2)]), "names unit -2 of 2 in value 1.0.0"),
        (_changed(input_users=[["x", [0]]]), "wrong value for input_users of a Flow"),
        (_changed(input_users={"x": 0}), "wrong value for input_users of a Flow"),
        (_changed(parameters={"a.weight": [7]}), "names unit 7 of 2 in parameters of 'a.weight'"),
        (_changed(joined=[{"first": 0, "last": 2, "reason": "", "advice": ""}]), "names unit 2 of 2 in joined"),
        (_changed(random_modules=[None]), "wrong value for random_modules of a Flow"),
    ],
)
def test_a_wrong_text_is_refused_by_the_name_of_the_field(text: str, said: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        from_json(text)
    assert caught.value.code is ErrorCode.INVALID_PLAN
    assert said in str(caught.value)
