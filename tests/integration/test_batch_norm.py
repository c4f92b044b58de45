"""Running statistics of BatchNorm through real processes: only training moves them, once per mini-batch if deferred."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs, module_jobs
from tests.integration.test_modules import make_job

NUM_STEPS = 3


class Normed(module_jobs.Skipping):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(module_jobs.LENGTH)  # type: ignore[assignment]


class Doubling(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def doubling() -> nn.Sequential:
    return nn.Sequential(nn.Linear(jobs.WIDTH, jobs.WIDTH), Doubling(jobs.WIDTH), nn.Linear(jobs.WIDTH, 4))


def list_job() -> pipesvc.Job:
    return make_job(
        jobs.with_noise, data=pipesvc.DataSource(jobs.samples, batch_size=8), batch_norm="deferred", clip_norm=None
    )


def test_n21_the_job_of_a_list_counts_mini_batches_whatever_looked_at_it_before(cluster: pipesvc.Client) -> None:
    """At submit its first micro-batch was tried, and before that it was profiled."""
    cluster.profile(list_job())
    verdict = pipesvc.verify(cluster, list_job(), num_steps=NUM_STEPS)
    assert (verdict.difference, verdict.num_stages) == (None, 2)
    weights = cluster.attach(verdict.run_id).state_dict()
    assert weights["1.num_batches_tracked"].item() == NUM_STEPS


@pytest.mark.parametrize(("batch_norm", "num_counted"), [("deferred", 1), ("per_micro_batch", 4)])
def test_n21_the_job_of_a_module_counts_as_it_says(cluster: pipesvc.Client, batch_norm: str, num_counted: int) -> None:
    verdict = pipesvc.verify(cluster, make_job(Normed, batch_norm=batch_norm), num_steps=NUM_STEPS)
    assert (verdict.difference, verdict.num_stages) == (None, 2)
    weights = cluster.attach(verdict.run_id).state_dict()
    assert weights["norm.num_batches_tracked"].item() == NUM_STEPS * num_counted


def test_statistics_that_cannot_be_deferred_are_refused_at_submit(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(jobs.samples, batch_size=8)
    with pytest.raises(PipesvcError, match=r"'1' \(Doubling\) keeps running statistics in a way of its own") as caught:
        cluster.submit(make_job(doubling, data=data, batch_norm="deferred"))
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert "tried before the start" in str(caught.value)
