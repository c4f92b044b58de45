"""How modules are run, through real processes: split, recomputed, compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import counted, jobs
from tests.integration.comparisons import assert_equal
from tests.integration.test_modules import make_job, truth
from tests.integration.test_numbers import make_job as make_layers_job


@pytest.mark.parametrize("recompute", [False, True, ("blocks.*.feed", "head")])
def test_n25_a_recomputed_module_with_split_backwards(
    cluster: pipesvc.Client, recompute: bool | tuple[str, ...]
) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, schedule="ZBV", recompute=recompute)
    assert_equal(cluster.submit(make_job(strategy=strategy)), truth())


NUM_STEPS, MICRO_BATCHES = 3, 4


def counted_runs(
    cluster: pipesvc.Client, tmp_path: Path, model: Callable[..., Any], plain: pipesvc.Strategy, way: pipesvc.Strategy
) -> tuple[list[pipesvc.Run], list[int]]:
    """The plain run and the other one, and how many forwards left a trace in each."""
    runs, counts = [], []
    for index, strategy in enumerate((plain, way)):
        path = str(tmp_path / str(index))
        data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=8 * NUM_STEPS), batch_size=8)
        runs.append(cluster.submit(make_job(pipesvc.Call(model, path=path), data=data, strategy=strategy)))
        runs[-1].wait()
        counts.append(counted.num_forwards(path))
    return runs, counts


@pytest.mark.parametrize(
    ("model", "recompute", "boundaries", "num_again"),
    [
        (counted.layers, True, ("1",), 2),
        (counted.layers, ("1",), ("1",), 1),
        (counted.Towering, True, ("tower.blocks.1",), 3),
        (counted.Towering, ("tower",), ("head",), 3),
    ],
    ids=["list", "layer", "units", "what holds units"],
)
def test_what_is_recomputed_runs_again_and_gives_the_same_numbers(
    cluster: pipesvc.Client,
    tmp_path: Path,
    model: Callable[..., Any],
    recompute: bool | tuple[str, ...],
    boundaries: tuple[str, ...],
    num_again: int,
) -> None:
    plain = pipesvc.Strategy(micro_batches=MICRO_BATCHES, boundaries=boundaries)
    runs, counts = counted_runs(cluster, tmp_path, model, plain, replace(plain, recompute=recompute))
    assert runs[0].losses() == runs[1].losses()
    weights = [run.state_dict() for run in runs]
    assert weights[0].keys() == weights[1].keys()
    assert [name for name, value in weights[0].items() if not torch.equal(value, weights[1][name])] == []
    assert counts[1] - counts[0] == num_again * NUM_STEPS * MICRO_BATCHES


def test_compiled_layers_agree_to_rounding(cluster: pipesvc.Client, tmp_path: Path) -> None:
    """Compiled kernels add in another order. One stage, since every process that compiles takes its time."""
    plain = pipesvc.Strategy(pipeline=False, micro_batches=MICRO_BATCHES)
    runs, counts = counted_runs(cluster, tmp_path, counted.layers, plain, replace(plain, compile=True))
    assert runs[1].losses() == pytest.approx(runs[0].losses(), rel=1e-5)
    assert counts[0] - counts[1] == 2 * NUM_STEPS * MICRO_BATCHES


def test_a_pattern_that_matches_nothing_in_a_list_is_refused_at_submit(cluster: pipesvc.Client) -> None:
    job = make_layers_job()
    with pytest.raises(PipesvcError, match=r"recompute has 'blocks\.\*', which is the name of no module") as caught:
        cluster.submit(replace(job, strategy=replace(job.strategy, recompute=("blocks.*",))))
    assert caught.value.code is ErrorCode.INVALID_JOB
