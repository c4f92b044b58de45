"""The numbers of a pipeline of real processes are those of one process, bit for bit (CPU float32, one thread)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import pipesvc
from tests.integration import jobs, plain
from tests.integration.comparisons import assert_equal

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
}


def make_job(
    *,
    optimizer: str = "SGD",
    micro_batches: int = 4,
    num_stages: int | None = 2,
    schedule: str | pipesvc.ScheduleFile = "1F1B",
    rows: int = 80,
    batch_size: int = 8,
    clip_norm: float | None = None,
    epochs: int = 1,
    pipeline: bool = True,
) -> pipesvc.Job:
    kind, options = OPTIMIZERS[optimizer]
    strategy = (
        pipesvc.Strategy(micro_batches=micro_batches, num_stages=num_stages, schedule=schedule)
        if pipeline
        else pipesvc.Strategy(pipeline=False, micro_batches=micro_batches)
    )
    return pipesvc.Job(
        model=pipesvc.Call(jobs.mlp, depth=4),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(kind, **options),
        data=pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=rows), batch_size=batch_size),
        strategy=strategy,
        epochs=epochs,
        clip_norm=clip_norm,
        seed=7,
    )


def plain_run(
    *, optimizer: str = "SGD", micro_batches: int = 4, rows: int = 80, clip_norm: float | None = None, epochs: int = 1
) -> plain.PlainRun:
    kind, options = OPTIMIZERS[optimizer]
    return plain.train(
        functools.partial(jobs.mlp, 4),
        functools.partial(jobs.samples, rows),
        jobs.cross_entropy,
        functools.partial(kind, **options),
        batch_size=8,
        micro_batches=micro_batches,
        clip_norm=clip_norm,
        epochs=epochs,
        seed=7,
    )


@pytest.mark.parametrize(
    ("num_stages", "micro_batches", "schedule", "optimizer"),
    [
        (2, 1, "GPipe", "momentum"),
        (2, 4, "1F1B", "AdamW"),
        (3, 2, "1F1B", "SGD"),
        (4, 4, "GPipe", "AdamW"),
        (4, 4, "1F1B", "momentum"),
        (3, 4, "naive", "SGD"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nothing overlaps")
def test_a09_losses_and_weights_equal_one_process(
    cluster: pipesvc.Client, num_stages: int, micro_batches: int, schedule: str, optimizer: str
) -> None:
    run = cluster.submit(
        make_job(num_stages=num_stages, micro_batches=micro_batches, schedule=schedule, optimizer=optimizer)
    )
    truth = plain_run(micro_batches=micro_batches, optimizer=optimizer)
    assert len(truth.losses) == 10
    assert_equal(run, truth)


def test_n28_one_stage_equals_plain_torch(cluster: pipesvc.Client) -> None:
    assert_equal(cluster.submit(make_job(num_stages=1)), plain_run())


def test_a18_one_switch_turns_the_pipeline_off(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(pipeline=False))
    assert_equal(run, plain_run())
    assert len(run.plan().stages) == 1


def test_n17_a_short_last_batch_counts_by_its_rows(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(rows=99, optimizer="AdamW"))
    truth = plain_run(rows=99, optimizer="AdamW")
    assert len(truth.losses) == 13
    assert_equal(run, truth)


def test_n26_clipping_uses_one_norm_over_all_stages(cluster: pipesvc.Client) -> None:
    clipped = plain_run(optimizer="momentum", clip_norm=0.1)
    assert clipped.losses != plain_run(optimizer="momentum").losses, "the bound must bite"
    assert_equal(cluster.submit(make_job(num_stages=3, optimizer="momentum", clip_norm=0.1)), clipped)


def test_f14_two_epochs_of_a_generator_are_twice_the_steps(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(rows=40, epochs=2))
    truth = plain_run(rows=40, epochs=2)
    assert len(truth.losses) == 10
    assert_equal(run, truth)


def test_n01_gradients_do_not_scale_with_the_number_of_micro_batches(cluster: pipesvc.Client) -> None:
    """One step of SGD: the update is the rate times the gradient. Tolerance: float32 rounding of other sums, and of
    the weights that a gradient is taken from."""
    torch.manual_seed(7)
    first = jobs.mlp(4).state_dict()
    gradients, norms = {}, {}
    for micro_batches in (2, 8):
        run = cluster.submit(make_job(rows=32, batch_size=32, micro_batches=micro_batches))
        run.wait()
        state = run.state_dict()
        gradients[micro_batches] = {name: (value - state[name]) / 0.1 for name, value in first.items()}
        norms[micro_batches] = torch.nn.utils.get_total_norm(gradients[micro_batches].values())
    assert len(run.losses()) == 1
    for name, value in gradients[2].items():
        torch.testing.assert_close(gradients[8][name], value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norms[8], norms[2], rtol=1e-4, atol=0.0)
    assert norms[2] > 0.1
