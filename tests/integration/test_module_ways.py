"""How modules are run, through real processes: split, recomputed, compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import forwards, module_jobs
from tests.integration.test_module_refusals import make_job as make_small_job
from tests.integration.test_modules import assert_equal, make_job, truth
from tests.integration.test_numbers import assert_equal as assert_equal_layers
from tests.integration.test_numbers import make_job as make_layers_job
from tests.integration.test_numbers import plain_run


@pytest.mark.parametrize("recompute", [False, True, ("blocks.*.feed", "head")])
def test_n25_a_recomputed_module_with_split_backwards(
    cluster: pipesvc.Client, recompute: bool | tuple[str, ...]
) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, schedule="ZBV", recompute=recompute)
    assert_equal(cluster.submit(make_job(strategy=strategy)), truth(), module_jobs.Skipping)


def test_recomputed_layers(cluster: pipesvc.Client) -> None:
    job = make_layers_job(optimizer="AdamW", clip_norm=0.1)
    run = cluster.submit(replace(job, strategy=replace(job.strategy, recompute=True)))
    assert_equal_layers(run, plain_run(optimizer="AdamW", clip_norm=0.1))


def test_a_module_that_holds_units_is_recomputed_where_it_is_not_cut(cluster: pipesvc.Client) -> None:
    weights = []
    for recompute in (False, ("tower",)):
        strategy = pipesvc.Strategy(boundaries=("head",), micro_batches=4, recompute=recompute)
        run = cluster.submit(make_small_job(forwards.Towering, strategy=strategy))
        run.wait()
        weights.append(run.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_compiled_layers_agree_to_rounding(cluster: pipesvc.Client) -> None:
    """Compiled kernels add in another order. One stage, since every process that compiles takes its time."""
    job = make_layers_job(rows=24, pipeline=False)
    job = replace(job, model=pipesvc.Call(module_jobs.one_block), strategy=replace(job.strategy, compile=True))
    plain = cluster.submit(replace(job, strategy=replace(job.strategy, compile=False)))
    plain.wait()
    compiled = cluster.submit(job)
    compiled.wait()
    assert compiled.losses() == pytest.approx(plain.losses(), rel=1e-5)


def test_a_pattern_that_matches_nothing_in_a_list_is_refused_at_submit(cluster: pipesvc.Client) -> None:
    job = make_layers_job()
    with pytest.raises(PipesvcError, match=r"recompute has 'blocks\.\*', which is the name of no module") as caught:
        cluster.submit(replace(job, strategy=replace(job.strategy, recompute=("blocks.*",))))
    assert caught.value.code is ErrorCode.INVALID_JOB
