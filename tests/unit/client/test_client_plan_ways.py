"""Plans where some pairs of workers have no way between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipesvc.client.planning import plan_job
from pipesvc.core.costs import Costs, LinkCost
from pipesvc.errors import ErrorCode, PipesvcError
from tests.unit.client.planning_costs import costs, crew, device, job

NO_WAY = LinkCost(latency_s=float("inf"))


def _parted(*pairs: str) -> Costs:
    """Three workers; the first of each pair does not reach the second."""
    return replace(costs(*map(device, "abc")), links={(pair[0], pair[1]): NO_WAY for pair in pairs})


@pytest.mark.parametrize("pair", ["ab", "ba"])
@pytest.mark.parametrize("schedule", ["1F1B", "auto"])
def test_an_open_cut_avoids_a_pair_without_a_way(pair: str, schedule: str) -> None:
    planned = plan_job(job(boundaries="auto", schedule=schedule, num_stages=3), _parted(pair), crew(*"abc"))
    workers = "".join(stage.worker for stage in planned.plan.stages)
    assert workers in ("acb", "bca")


def test_schedules_of_several_stages_avoid_it_too() -> None:
    planned = plan_job(job(boundaries="auto", schedule="ZBV"), _parted("ab", "ba"), crew(*"abc"))
    assert "".join(stage.worker for stage in planned.plan.stages) in ("acbbca", "bcaacb")


def test_a_plan_over_it_is_refused_by_name() -> None:
    for pair, said in (("ab", "stage 0 on a sends to stage 1 on b"), ("ba", "stage 1 on b sends to stage 0 on a")):
        for schedule in ("1F1B", "auto"):
            with pytest.raises(PipesvcError) as caught:
                plan_job(job(num_stages=2, schedule=schedule), _parted(pair), crew(*"abc"))
            assert caught.value.code is ErrorCode.LINK_LOST
            assert said in str(caught.value)
    assert plan_job(job(num_stages=2, placement={"stage:1": "c"}), _parted("ab"), crew(*"abc")).plan.workers


def test_demands_that_leave_no_other_way_are_refused_with_the_pair() -> None:
    with pytest.raises(PipesvcError, match="there is no way between workers a and b"):
        plan_job(job(boundaries="auto", placement={"stage:0": "a", "stage:1": "b"}), _parted("ab"), crew(*"abc"))
