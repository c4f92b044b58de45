"""Tied weights across stages through real processes: the bits of the plain loop, for a module and for a list."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import pipesvc
from tests.integration import jobs, module_jobs, plain
from tests.integration.comparisons import assert_equal
from tests.integration.test_modules import make_job, truth

ADAM = pipesvc.Optimizer(torch.optim.Adam, lr=0.01)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_n10_a_module_with_a_tied_head(cluster: pipesvc.Client, num_stages: int, schedule: str) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=num_stages, schedule=schedule)
    run = cluster.submit(make_job(module_jobs.Tied, strategy=strategy))
    assert_equal(run, truth(module_jobs.Tied))
    ties = {tie.name: tie.stages for tie in run.plan().ties}
    assert ties["head.weight"] == (0, num_stages - 1)  # its first name: the head is registered before the words
    assert ties["blocks.0.back.weight"][0] == 0


def test_stages_of_two_workers_that_take_turns(cluster: pipesvc.Client) -> None:
    strategy = pipesvc.Strategy(
        micro_batches=4,
        num_stages=4,
        schedule="ZBV",
        placement={f"stage:{index}": f"worker-{worker}" for index, worker in enumerate((0, 1, 1, 0))},
    )
    assert_equal(cluster.submit(make_job(module_jobs.Tied, strategy=strategy)), truth(module_jobs.Tied))


@pytest.mark.parametrize("boundaries", [(4,), (3, 6)])
def test_n10_a_list_with_tied_layers(cluster: pipesvc.Client, boundaries: tuple[int, ...]) -> None:
    run = cluster.submit(
        pipesvc.Job(
            model=jobs.tied,
            loss=cross_entropy,
            optimizer=ADAM,
            data=pipesvc.DataSource(jobs.samples, batch_size=8),
            strategy=pipesvc.Strategy(boundaries=boundaries, micro_batches=4),
            clip_norm=0.1,
            seed=7,
        )
    )
    assert_equal(run, _truth_of_list())
    assert [tie.name for tie in run.plan().ties] == ["0.weight", "2.weight", "2.bias"]


@functools.cache
def _truth_of_list() -> plain.PlainRun:
    options: dict[str, Any] = {"batch_size": 8, "micro_batches": 4, "clip_norm": 0.1, "seed": 7}
    optimizer = functools.partial(torch.optim.Adam, lr=0.01)
    return plain.train(jobs.tied, jobs.samples, cross_entropy, optimizer, **options)
