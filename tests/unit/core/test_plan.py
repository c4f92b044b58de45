"""The plan's text form and digest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.plan import Plan, StagePlan
from pipesvc.core.ties import Tie
from pipesvc.errors import ErrorCode, PipesvcError

PLAN = Plan(
    stages=(
        StagePlan(
            index=0,
            label="cpu",
            worker="a",
            device="cpu",
            first_layer=0,
            end_layer=1,
            layer_names=("0",),
            parameter_bytes=8,
        ),
        StagePlan(
            index=1, label="gpu:0", worker="b", device="cuda:0", first_layer=1, end_layer=3, layer_names=("1", "2")
        ),
        StagePlan(index=2, label="cpu:z", worker="a", device="cpu", first_layer=3, end_layer=4, layer_names=("3",)),
    ),
    schedule="1F1B",
    micro_batches=4,
    feeder_worker="a",
    threads={"b": 2, "a": 1},
    warnings=("one",),
)
NAMES = st.text(max_size=5)
STAGES = st.builds(
    StagePlan,
    index=st.integers(),
    label=NAMES,
    worker=NAMES,
    device=NAMES,
    first_layer=st.integers(),
    end_layer=st.integers(),
    layer_names=st.lists(NAMES, max_size=3).map(tuple),
    parameter_bytes=st.integers(),
)
TIES = st.builds(
    Tie,
    name=NAMES,
    stages=st.lists(st.integers(), max_size=3).map(tuple),
    num_bytes=st.integers(),
    is_trained=st.booleans(),
)
PLANS = st.builds(
    Plan,
    stages=st.lists(STAGES, max_size=3).map(tuple),
    schedule=NAMES,
    micro_batches=st.integers(),
    in_flight=st.integers(),
    flow_json=NAMES,
    feeder_worker=NAMES,
    threads=st.dictionaries(NAMES, st.integers(), max_size=3),
    ties=st.lists(TIES, max_size=2).map(tuple),
    warnings=st.lists(NAMES, max_size=2).map(tuple),
)


@given(PLANS)
def test_text_parses_back(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def test_equal_plans_have_equal_text_and_digest() -> None:
    same = replace(PLAN, threads={"a": 1, "b": 2})
    assert same.to_json() == PLAN.to_json()
    assert same.digest == PLAN.digest
    assert replace(PLAN, micro_batches=5).digest != PLAN.digest


def test_workers_and_their_stages() -> None:
    assert PLAN.workers == ("a", "b")
    assert [stage.index for stage in PLAN.stages_of("a")] == [0, 2]
    assert PLAN.num_stages == 3


def test_a_plan_without_a_flow_has_none_and_a_wrong_one_is_refused() -> None:
    assert PLAN.flow is None
    assert PLAN.ends == (1, 3, 4)
    with pytest.raises(PipesvcError, match="the text of a flow"):
        _ = replace(PLAN, flow_json="{}").flow


def test_a_plan_reads_well() -> None:
    assert str(PLAN).splitlines() == [
        "1F1B, 4 micro-batches, 3 stages",
        "stage 0 (cpu): layers 0 on a/cpu",
        "stage 1 (gpu:0): layers 1 to 2 on b/cuda:0",
        "stage 2 (cpu:z): layers 3 on a/cpu",
    ]


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(PLAN.to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "no object for a Plan"),
        ("{}", "differs from a Plan in"),
        (_changed(surprise=1), "differs from a Plan in surprise"),
        (_changed(micro_batches="4"), "wrong value for micro_batches"),
        (_changed(micro_batches=True), "wrong value for micro_batches"),
        (_changed(flow_json={}), "wrong value for flow_json"),
        (_changed(threads={"a": "1"}), "wrong value for threads"),
        (_changed(warnings=[1]), "wrong value for warnings"),
        (_changed(stages=["0"]), "wrong value for stages"),
        (_changed(stages=[{}]), "differs from a StagePlan in"),
        (_changed(ties=[{}]), "differs from a Tie in"),
    ],
)
def test_a_wrong_text_is_refused_by_the_name_of_the_field(text: str, said: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        Plan.from_json(text)
    assert caught.value.code is ErrorCode.INVALID_PLAN
    assert said in str(caught.value)
