"""What costs let expect of a plan that somebody else made: only of one that has just these layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipesvc.client.codec import Codec
from pipesvc.client.planning import plan_job, predict
from pipesvc.core.plan import Plan, StagePlan
from pipesvc.errors import ErrorCode, PipesvcError
from tests.unit.client.planning_costs import MIB, costs, crew, device, job

TWO = costs(device("a"), device("b"))
PLAN = plan_job(job(boundaries=(3,)), TWO, crew("a", "b")).plan


def _with(stage: StagePlan) -> Plan:
    return replace(PLAN, stages=tuple(stage if each.index == stage.index else each for each in PLAN.stages))


def test_the_plan_itself_is_estimated() -> None:
    report, evaluated = predict(PLAN, TWO, {}, decides=False, codec=Codec())
    assert report.step_s == evaluated.step.step_s > 0


def test_p02_layers_of_the_same_names_and_another_count_of_parameters_are_refused() -> None:
    last = PLAN.stages[-1]
    with pytest.raises(PipesvcError, match=f"6 layers with {6 * MIB + 4} bytes of parameters, which are not") as caught:
        predict(_with(replace(last, parameter_bytes=last.parameter_bytes + 4)), TWO, {}, decides=False, codec=Codec())
    assert caught.value.code is ErrorCode.INVALID_PLAN


def test_p02_as_many_parameters_in_layers_of_other_names_are_refused() -> None:
    last = PLAN.stages[-1]
    for names in ((*last.layer_names[:-1], "head"), last.layer_names[::-1]):
        with pytest.raises(PipesvcError, match="which are not the job's 6"):
            predict(_with(replace(last, layer_names=names)), TWO, {}, decides=False, codec=Codec())


def test_a_place_that_was_not_measured_is_refused() -> None:
    with pytest.raises(PipesvcError, match="stage 1 is placed on b/cuda:0, which was not measured"):
        predict(_with(replace(PLAN.stages[-1], device="cuda:0")), TWO, {}, decides=False, codec=Codec())
