"""Costs that are kept of a model that a file has changed: whatever does not fit them says how to measure again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import pipesvc
from pipesvc.client.watching import PipesvcWarning
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs, shaped

FRESH = r"pipesvc profile JOB --fresh.*is_fresh=True"


def test_what_does_not_fit_kept_costs_points_to_a_fresh_profile(cluster: pipesvc.Client, tmp_path: Path) -> None:
    file = tmp_path / "widths.json"

    def model_of(*widths: int) -> None:
        file.write_text(json.dumps([*widths, jobs.NUM_CLASSES]))

    def job(**strategy: object) -> pipesvc.Job:
        return pipesvc.Job(
            model=pipesvc.Call(shaped.build, path=str(file)),
            loss=jobs.cross_entropy,
            optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
            data=pipesvc.DataSource(jobs.samples, batch_size=8),
            strategy=pipesvc.Strategy(micro_batches=4, **strategy),  # type: ignore[arg-type]
        )

    def refusal(asked: pipesvc.Job, *, is_planned: bool = False) -> str:
        with pytest.raises(PipesvcError) as caught:
            cluster.submit(asked, is_planned=is_planned)
        assert caught.value.code is ErrorCode.INVALID_PLAN
        return str(caught.value)

    model_of(8, 8, 8)
    cluster.profile(job())

    model_of(8)  # two layers now: one boundary of the four is not there, another one cuts them otherwise
    said = refusal(job(boundaries="uniform", num_stages=2))
    assert "the boundary '2' is not the name of a layer" in said
    assert "--fresh" in said
    with pytest.warns(PipesvcWarning, match=rf"4 layers with 1008 bytes.*2 layers with 432 bytes.*{FRESH}"):
        cluster.submit(job(boundaries=(1,)), is_planned=True).wait()

    model_of(8, 8, 8, 8)
    said = refusal(job(boundaries=("4",)), is_planned=True)
    assert "the boundary '4' is not the name of a layer" in said
    assert "--fresh" in said

    model_of(8, 16, 8)  # as many layers, of another width
    wide = cluster.submit(job(boundaries=(2,)))
    wide.wait()
    with pytest.raises(PipesvcError, match=f"not the job's 4 with 1008.*{FRESH}"):
        cluster.compare(job(), wide.run_id)

    cluster.profile(job(), is_fresh=True)
    cluster.compare(job(), wide.run_id)
    cluster.submit(job(boundaries="uniform", num_stages=2)).wait()
