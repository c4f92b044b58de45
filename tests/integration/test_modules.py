"""Modules with a forward of their own through real processes: the bits of the plain loop, or a named refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs, module_jobs, plain
from tests.integration.comparisons import assert_equal, refusal

CLIP_NORM = 0.05


def make_job(model: Callable[..., Any] | pipesvc.Call = module_jobs.Skipping, **changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": model,
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.AdamW, lr=0.01),
        "data": pipesvc.DataSource(module_jobs.words, batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=2),
        "clip_norm": CLIP_NORM,
        "seed": 7,
    }
    return pipesvc.Job(**(options | changes))


@functools.cache
def truth(
    model: Callable[[], torch.nn.Module] = module_jobs.Skipping,
    source: Callable[[], Any] = module_jobs.words,
    call: plain.Call = lambda model, inputs: model(**inputs),
) -> plain.PlainRun:
    return plain.train(
        model,
        source,
        jobs.cross_entropy,
        functools.partial(torch.optim.AdamW, lr=0.01),
        batch_size=8,
        micro_batches=4,
        clip_norm=CLIP_NORM,
        seed=7,
        call=call,
    )


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_a09_a_plain_module_equals_the_plain_loop(cluster: pipesvc.Client, num_stages: int, schedule: str) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=num_stages, schedule=schedule)
    run = cluster.submit(make_job(strategy=strategy))
    assert_equal(run, truth())
    assert len({stage.worker for stage in run.plan().stages}) == num_stages


@pytest.mark.parametrize("model", [module_jobs.Skipping, module_jobs.Tied])
def test_a23_s02_the_exported_file_predicts_the_same_in_plain_torch(
    cluster: pipesvc.Client, model: Callable[[], torch.nn.Module], tmp_path: Path
) -> None:
    job = make_job(model, strategy=pipesvc.Strategy(micro_batches=4, num_stages=3))
    run = cluster.submit(job)
    run.wait()
    run.save_weights(tmp_path / "model.safetensors")
    torch.manual_seed(99)  # other weights than those of the job
    plain_model, trained = model(), model()
    plain_model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    trained.load_state_dict(truth(model).weights, strict=True)
    rows = [inputs for inputs, _ in module_jobs.words()]
    batches = [{name: torch.stack([row[name] for row in rows[at : at + 8]]) for name in rows[0]} for at in (0, 8, 32)]
    predicted = list(cluster.predict(job, batches, weights=run, micro_batches=1))
    assert len(predicted) == 3
    for batch, found in zip(batches, predicted, strict=True):
        with torch.no_grad():
            assert torch.equal(plain_model.eval()(**batch), found)
            assert torch.equal(trained.eval()(**batch), found)


def test_several_stages_on_a_worker(cluster: pipesvc.Client) -> None:
    strategy = pipesvc.Strategy(
        micro_batches=4,
        num_stages=4,
        schedule="Interleaved1F1B",
        placement={f"stage:{index}": f"worker-{index % 2}" for index in range(4)},
    )
    assert_equal(cluster.submit(make_job(strategy=strategy)), truth())


def test_a_cut_by_names_inside_a_block(cluster: pipesvc.Client) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, boundaries=("blocks.0.feed", "blocks.2.back"))
    run = cluster.submit(make_job(strategy=strategy))
    assert_equal(run, truth())
    assert [stage.layer_names[0] for stage in run.plan().stages][1:] == ["blocks.0.feed", "blocks.2.back"]


def test_guards_in_init_and_a_tuple_of_arguments(cluster: pipesvc.Client) -> None:
    strategy = pipesvc.Strategy(micro_batches=4)
    data = pipesvc.DataSource(module_jobs.pairs, batch_size=8)
    run = cluster.submit(make_job(module_jobs.Marked, data=data, strategy=strategy))
    expected = truth(module_jobs.Marked, module_jobs.pairs, _by_place)
    assert_equal(run, expected)
    assert [stage.label for stage in run.plan().stages] == ["cpu:first", "cpu:middle", "cpu:last"]


def _by_place(model: torch.nn.Module, inputs: Any) -> Any:
    return model(*inputs)


def test_a_loss_that_the_module_computes_of_one_dict(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(module_jobs.words_with_labels, batch_size=8, labels=False)
    run = cluster.submit(make_job(module_jobs.WithLoss, data=data, loss=None))
    run.wait()
    expected = truth()
    assert run.losses() == expected.losses
    weights = run.state_dict()
    module_jobs.WithLoss().load_state_dict(weights, strict=True)
    assert all(torch.equal(weights[f"inner.{name}"], value) for name, value in expected.weights.items())


@pytest.mark.parametrize("model", [module_jobs.Skipping, module_jobs.Deciding])
def test_a18_one_stage_runs_any_module(cluster: pipesvc.Client, model: Callable[[], torch.nn.Module]) -> None:
    run = cluster.submit(make_job(model, strategy=pipesvc.Strategy(pipeline=False, micro_batches=4)))
    assert_equal(run, truth(model))


def test_control_flow_on_values_is_refused_at_submit_with_its_line(cluster: pipesvc.Client) -> None:
    error = refusal(cluster, make_job(module_jobs.Deciding))
    assert error.code is ErrorCode.INVALID_JOB
    assert "module_jobs.py" in error.details.message
    assert "`if x.sum() > 0:`" in error.details.message
    assert "pipeline=False" in error.details.advice


def test_a_cut_that_does_not_exist_is_refused_with_the_nearest_names(cluster: pipesvc.Client) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, boundaries=("blocks.1.fed",))
    error = refusal(cluster, make_job(strategy=strategy))
    assert error.code is ErrorCode.INVALID_PLAN
    assert "blocks.1.feed" in error.details.advice


def test_inputs_that_do_not_fit_forward_are_refused(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(jobs.samples, batch_size=8)
    error = refusal(cluster, make_job(data=data))
    assert error.code is ErrorCode.INVALID_JOB
    assert "do not fit" in error.details.message


def test_a_stream_is_cut_by_its_first_batch_which_trains_too(cluster: pipesvc.Client) -> None:
    source = pipesvc.StreamSource(module_jobs.words(), batch_size=8)
    refused = pipesvc.Strategy(micro_batches=4, boundaries=("nowhere",))
    with pytest.raises(PipesvcError, match="cut 'nowhere' does not exist"):
        cluster.submit(make_job(data=source, strategy=refused))
    run = cluster.submit(make_job(data=source))
    assert_equal(run, truth())
    assert run.plan().flow is not None
