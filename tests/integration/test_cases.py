"""Rows of the fault list that need the whole service, beyond those that stand with their subject."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import pipesvc
from pipesvc.client.watching import PipesvcWarning
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs, plain


def make_job(**changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": pipesvc.Call(jobs.mlp, depth=1),
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        "data": pipesvc.DataSource(jobs.samples, batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=2),
        "seed": 7,
    }
    return pipesvc.Job(**(options | changes))


def finish(cluster: pipesvc.Client, job: pipesvc.Job) -> tuple[list[float], dict[str, Tensor]]:
    run = cluster.submit(job)
    run.wait()
    return run.losses(), run.state_dict()


def plain_run(*, num_rows: int = 80, batch_size: int = 8, micro_batches: int = 4, epochs: int = 1) -> plain.PlainRun:
    return plain.train(
        functools.partial(jobs.mlp, 1),
        functools.partial(jobs.samples, num_rows),
        jobs.cross_entropy,
        functools.partial(torch.optim.SGD, lr=0.1),
        batch_size=batch_size,
        micro_batches=micro_batches,
        epochs=epochs,
        seed=7,
    )


def test_n02_five_rows_in_two_micro_batches_weigh_by_rows(cluster: pipesvc.Client) -> None:
    """Bit-equal to the same cut in one process; to the uncut batch within rounding."""
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=50), batch_size=5)
    job = make_job(data=data, strategy=pipesvc.Strategy(micro_batches=2, num_stages=2))
    losses, weights = finish(cluster, job)
    same_cut = plain_run(num_rows=50, batch_size=5, micro_batches=2)
    assert losses == same_cut.losses
    uncut = plain_run(num_rows=50, batch_size=5, micro_batches=1)
    for name, value in uncut.weights.items():
        assert torch.equal(weights[name], same_cut.weights[name])
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_masked", [8, 9])
def test_n03_masked_tokens_weigh_by_their_number(cluster: pipesvc.Client, num_masked: int) -> None:
    """One unmasked row or none in the first micro-batch and nine in the second: as one batch, within rounding."""
    found = []
    for micro_batches in (2, 1):
        job = make_job(
            loss=jobs.masked_loss,
            weight=jobs.is_unmasked,
            data=pipesvc.DataSource(pipesvc.Call(jobs.masked_samples, num_masked=num_masked), batch_size=18),
            strategy=pipesvc.Strategy(micro_batches=micro_batches, num_stages=2 if micro_batches > 1 else 1),
            check_finite=True,
        )
        found.append(finish(cluster, job))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, value in found[1][1].items():
        torch.testing.assert_close(found[0][1][name], value, rtol=1e-5, atol=1e-7)


def test_n18_twelve_steps_of_ten_batches_are_a_second_epoch(cluster: pipesvc.Client) -> None:
    losses, _ = finish(cluster, make_job(max_steps=12))
    assert losses == plain_run(epochs=2).losses[:12]


def test_n18_twelve_steps_of_one_epoch_of_ten_end_with_it_and_say_so(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(max_steps=12, epochs=1))
    with pytest.warns(PipesvcWarning, match="the data ended after 10 steps, before max_steps=12"):
        run.wait()
    assert len(run.losses()) == 10
    assert run.info().warnings == ["the data ended after 10 steps, before max_steps=12"]


def test_f13_the_same_model_after_a_failure_has_the_same_bits(cluster: pipesvc.Client) -> None:
    faulty = pipesvc.Call(jobs.faulty, kind="raise", at_call=10)
    with pytest.raises(PipesvcError):
        cluster.submit(make_job(model=faulty)).wait()
    sound = pipesvc.Call(jobs.faulty, kind="raise", at_call=10_000)
    losses, weights = finish(cluster, make_job(model=sound))
    truth = plain.train(
        functools.partial(jobs.faulty, "none"),
        jobs.samples,
        jobs.cross_entropy,
        functools.partial(torch.optim.SGD, lr=0.1),
        batch_size=8,
        micro_batches=4,
        seed=7,
    )
    assert losses == truth.losses
    assert all(torch.equal(weights[name], value) for name, value in truth.weights.items())


@pytest.mark.parametrize(
    ("changes", "code", "valid"),
    [
        ({"model": jobs.misplaced}, ErrorCode.UNKNOWN_DEVICE, '"cpu:NAME"'),
        ({"model": jobs.on_gpu}, ErrorCode.UNKNOWN_DEVICE, "worker-0: cpu"),
        ({"model": jobs.mlp, "placement": {"stage:0": "nobody"}}, ErrorCode.UNKNOWN_WORKER, "worker-0"),
        ({"model": jobs.mlp, "boundaries": ("6", "nobody")}, ErrorCode.INVALID_PLAN, "0, 1, 2"),
        ({"model": jobs.mlp, "boundaries": ("6", "2")}, ErrorCode.INVALID_PLAN, "in this order"),
    ],
)
def test_a05_misuse_is_refused_at_submit_with_the_valid_names(
    cluster: pipesvc.Client, changes: dict[str, Any], code: ErrorCode, valid: str
) -> None:
    wishes: dict[str, Any] = {name: value for name, value in changes.items() if name != "model"}
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=2 if "placement" in wishes else None, **wishes)
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(model=changes["model"], strategy=strategy))
    assert caught.value.code == code
    assert valid in str(caught.value)


def test_a05_layers_are_split_where_their_names_say(cluster: pipesvc.Client) -> None:
    """Names that are not the indices, so that one cannot stand for the other."""
    runs = [
        cluster.submit(make_job(model=jobs.named, strategy=pipesvc.Strategy(micro_batches=4, boundaries=boundaries)))
        for boundaries in (("head", "loss_side"), (2, 3))
    ]
    by_name, by_index = [[stage.layer_names for stage in finished(run).plan().stages] for run in runs]
    assert by_name == by_index == [("body", "bend"), ("head",), ("loss_side",)]
    assert runs[0].losses() == runs[1].losses()


def finished(run: pipesvc.Run) -> pipesvc.Run:
    run.wait()
    return run
