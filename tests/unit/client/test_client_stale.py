"""When a refusal points to a fresh profile: only where layers that were looked at earlier can be its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipesvc.client.planning import plan_job
from pipesvc.client.stale import doubting
from pipesvc.errors import ErrorCode, PipesvcError, Where
from tests.unit.client.planning_costs import MIB, costs, crew, device, job

TWO = costs(device("a"), device("b"))
SMALL = costs(device("a", memory_bytes=MIB), device("b", memory_bytes=MIB))


def _said(error: PipesvcError, *, are_kept: bool = True) -> str:
    with pytest.raises(PipesvcError) as caught, doubting(are_kept):
        raise error
    return str(caught.value)


def _refusal(known: Any, **strategy: Any) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        plan_job(job(**strategy), known, crew("a", "b"))
    return caught.value


@pytest.mark.parametrize(
    ("known", "strategy"),
    [
        (TWO, {"boundaries": ("head",)}),
        (TWO, {"boundaries": (9,)}),
        (TWO, {"num_stages": 9}),
        (TWO, {"boundaries": "type:Attention"}),
        (TWO, {"boundaries": "parameters", "num_stages": 9}),
        (TWO, {"boundaries": "auto", "num_stages": 9}),
        (SMALL, {"boundaries": "auto"}),
        (SMALL, {"boundaries": (3,)}),
        (replace(TWO, layers=TWO.layers[:1]), {"schedule": "ZBV", "num_stages": 2}),
    ],
)
def test_what_other_layers_would_meet_points_to_a_fresh_profile(known: Any, strategy: dict[str, Any]) -> None:
    if len(known.layers) == 1:
        times = {name: (0.0,) for name in ("forward_s", "backward_s", "update_s")}
        devices = tuple(replace(each, times=replace(each.times, **times)) for each in known.devices)
        known = replace(known, devices=devices)
    error = _refusal(known, **strategy)
    assert "--fresh" in _said(error)
    assert "--fresh" not in _said(error, are_kept=False)


@pytest.mark.parametrize(
    "strategy",
    [
        {"placement": {"gpu:0": "a"}},
        {"placement": {"gpu:0": "a"}, "boundaries": "auto"},
        {"schedule": "Interleaved1F1B", "num_stages": 5},
        {"schedule": "ZBV", "placement": {"stage:0": "a", "stage:3": "b"}},
    ],
)
def test_what_any_layers_would_meet_does_not(strategy: dict[str, Any]) -> None:
    error = _refusal(TWO, **strategy)
    assert error.code is ErrorCode.INVALID_PLAN
    assert "--fresh" not in _said(error)


def test_what_the_coordinator_refuses_of_a_plan_that_passed_here_does() -> None:
    where = Where(run_id="r")
    assert "--fresh" in _said(PipesvcError(ErrorCode.INVALID_PLAN, "the boundary '2' is no layer", where=where))
    assert "--fresh" not in _said(PipesvcError(ErrorCode.LINK_LOST, "no way", where=where))
