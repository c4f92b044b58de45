"""One builder for each stage, for what neither a skeleton holds nor a replay follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs, stage_jobs
from tests.integration.test_modules import make_job as module_job


def make_job(model: Sequence[Any] = stage_jobs.MODEL, **changes: Any) -> pipesvc.Job:
    data = pipesvc.DataSource(jobs.samples, batch_size=8)
    options = {"data": data, "strategy": pipesvc.Strategy(micro_batches=4), "clip_norm": None}
    return module_job(model, **options | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("init", [None, "by_name"])
def test_builders_of_stages_have_the_numbers_of_a_chain(cluster: pipesvc.Client, init: str | None) -> None:
    model = stage_jobs.MODEL if init is None else stage_jobs.MODEL[1:]  # what reads values cannot be keyed
    placement = {"stage:2": "worker-1"} if init is None else {}
    strategy = pipesvc.Strategy(micro_batches=4, placement=placement)
    verdict = pipesvc.verify(cluster, make_job(model, init=init, strategy=strategy), num_steps=2)
    assert (verdict.difference, verdict.num_stages) == (None, len(model))


def test_one_process_builds_and_trains_the_same(cluster: pipesvc.Client) -> None:
    runs = [
        cluster.submit(make_job(strategy=strategy, max_steps=2))
        for strategy in (
            pipesvc.Strategy(micro_batches=4, placement={"stage:2": "worker-1"}),
            pipesvc.Strategy(micro_batches=4, pipeline=False),
        )
    ]
    for run in runs:
        run.wait()
    assert runs[0].losses() == runs[1].losses()
    split, whole = (run.state_dict() for run in runs)
    plain = stage_jobs.plain_chain(7)
    plain.load_state_dict(split, strict=True)
    assert all(torch.equal(split[name], whole[name]) for name in plain.state_dict())


def test_builders_are_measured_and_planned_for(cluster: pipesvc.Client) -> None:
    job = make_job(stage_jobs.MODEL[1:], strategy=pipesvc.Strategy(micro_batches=4, schedule="auto"))
    assert [layer.name for layer in cluster.profile(job).costs.layers] == ["0", "1"]
    plan = cluster.plan(job)
    assert list(plan.strategy.boundaries) in ([1], ["1"])
    run = cluster.submit(dataclasses.replace(job, strategy=plan.strategy, max_steps=1))
    run.wait()


def test_a_list_for_a_stage_is_refused_with_its_stage(cluster: pipesvc.Client) -> None:
    with pytest.raises(PipesvcError, match="the builder of stage 1: the model function gave a list, not a module"):
        cluster.submit(make_job([stage_jobs.middle, stage_jobs.layers]))


def test_builders_that_share_a_parameter_are_refused(cluster: pipesvc.Client) -> None:
    with pytest.raises(PipesvcError, match=r"stages 0, 1 give the same parameter '0\.weight'") as caught:
        cluster.submit(make_job([stage_jobs.shared, stage_jobs.shared, stage_jobs.top]))
    assert caught.value.code is ErrorCode.INVALID_JOB
