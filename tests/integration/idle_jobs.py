"""What tests of idle time submit: two stages, one of which takes its time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import pipesvc
from tests.integration import jobs


def two_stages(first_s: float = 0.0, last_s: float = 0.0) -> nn.Sequential:
    """Each with so many seconds for the forward of a micro-batch."""
    return nn.Sequential(
        jobs.Sleepy(jobs.WIDTH, first_s, by_row=False), jobs.Sleepy(jobs.NUM_CLASSES, last_s, by_row=False)
    )


def idle_job(*, same_host: bool, evaluation: pipesvc.Evaluation | None = None, **pauses: float) -> pipesvc.Job:
    """10 steps of 4 micro-batches, of which stage 0 has one in flight: two parcels may be on their way."""
    strategy: dict[str, Any] = {"micro_batches": 4, "num_stages": 2, "in_flight": 1, "same_host": same_host}
    return pipesvc.Job(
        model=pipesvc.Call(two_stages, **pauses),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=80), batch_size=8),
        strategy=pipesvc.Strategy(**strategy),
        evaluation=evaluation,
    )
