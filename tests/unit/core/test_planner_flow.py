"""Plans of modules: the flow travels in the plan, and a cut that it does not allow is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipesvc.core.flow import Flow, Joined, Value
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo
from pipesvc.core.plan import Plan, StrategySettings, WorkerInfo
from pipesvc.core.planner import make_plan
from pipesvc.core.stages import is_uncut
from pipesvc.errors import ErrorCode, PipesvcError

WORKERS = [WorkerInfo(name=name) for name in "ab"]
UNITS = tuple(LayerInfo(name=name, type="Block", parameter_bytes=4) for name in ("wte", "h.0", "h.1", "head"))
FLOW = Flow(
    units=UNITS,
    values=(
        Value(key="1.0.0", producer=0, users=(1, 3), shape=(2,), dtype="float32", num_bytes=8, is_differentiable=True),
    ),
    input_users={"ids": (0,)},
    parameters={"wte.weight": (0,), "h.0.weight": (1,), "h.1.weight": (2,), "head.weight": (3,)},
)


def _plan(flow: Flow, **settings: Any) -> Plan:
    plan = make_plan(StrategySettings(micro_batches=2, **settings), flow.units, WORKERS, to_json(flow))
    assert isinstance(plan, Plan)
    return plan


def _refusal(flow: Flow, **settings: Any) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        _plan(flow, **settings)
    return caught.value


def test_units_are_cut_as_layers_are_and_the_flow_goes_along() -> None:
    plan = _plan(FLOW, boundaries=("h.1",))
    assert [stage.layer_names for stage in plan.stages] == [("wte", "h.0"), ("h.1", "head")]
    assert (plan.ends, plan.flow) == ((2, 4), FLOW)
    assert _plan(FLOW).ends == (2, 4)
    assert _plan(FLOW, is_pipelined=False).flow == FLOW


def test_a_list_has_no_flow() -> None:
    plan = make_plan(StrategySettings(micro_batches=2), UNITS, WORKERS)
    assert isinstance(plan, Plan)
    assert plan.flow is None


def test_what_must_stay_together_is_refused_with_the_way_out() -> None:
    joined = Joined(first=1, last=2, reason="a checkpointed function calls both", advice="Cut where it begins.")
    error = _refusal(replace(FLOW, joined=(joined,)))
    assert error.code is ErrorCode.INVALID_PLAN
    assert "units 'h.0' and 'h.1' cannot lie on stages 0 and 1: a checkpointed function" in error.details.message
    assert error.details.advice == "Cut where it begins."
    assert _plan(replace(FLOW, joined=(joined,)), boundaries=(1,)).ends == (1, 4)


def test_a_flow_that_is_none_is_refused() -> None:
    with pytest.raises(PipesvcError, match="the text of a flow"):
        make_plan(StrategySettings(micro_batches=2), UNITS, WORKERS, "{}")


def _marked(*marks: str) -> Sequence[LayerInfo]:
    return [replace(unit, mark=mark) for unit, mark in zip(UNITS, marks, strict=False)]


@pytest.mark.parametrize(
    ("settings", "layers", "default", "is_one"),
    [
        ({}, UNITS, 1, True),
        ({}, UNITS, 2, False),
        ({}, UNITS[:1], 2, True),
        ({}, UNITS, 0, True),
        ({"num_stages": 1}, UNITS, 2, True),
        ({"num_stages": 2}, UNITS, 1, False),
        ({"num_stages": 2}, UNITS[:1], 1, False),
        ({"boundaries": ("nowhere",)}, UNITS, 1, False),
        ({"boundaries": (1,)}, UNITS, 1, False),
        ({"boundaries": (1,), "is_pipelined": False}, UNITS, 2, True),
        ({"num_stages": 2, "is_pipelined": False}, UNITS, 2, True),
        ({}, _marked("cpu", "cpu", "", "gpu:0"), 1, False),
        ({}, _marked("cpu", "cpu"), 2, True),
    ],
)
def test_one_stage_is_asked_for(
    settings: dict[str, Any], layers: Sequence[LayerInfo], default: int, is_one: bool
) -> None:
    assert is_uncut(StrategySettings(**settings), layers, default) is is_one
