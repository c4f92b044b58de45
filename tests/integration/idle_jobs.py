"""What tests of idle time submit: two stages, one of which takes its time."""

from __future__ import annotations

import torch
from torch import nn

import pipesvc
from tests.integration import jobs


def two_stages(first_s: float = 0.0, last_s: float = 0.0) -> nn.Sequential:
    """Each with so many seconds for the forward of a micro-batch."""
    return nn.Sequential(
        jobs.Sleepy(jobs.WIDTH, first_s, by_row=False), jobs.Sleepy(jobs.NUM_CLASSES, last_s, by_row=False)
    )


def idle_job(
    *, same_host: bool, in_flight: int = 1, evaluation: pipesvc.Evaluation | None = None, **pauses: float
) -> pipesvc.Job:
    """10 steps of 4 micro-batches. With one of them in flight on stage 0, two parcels may be on their way."""
    return pipesvc.Job(
        model=pipesvc.Call(two_stages, **pauses),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=80), batch_size=8),
        strategy=pipesvc.Strategy(micro_batches=4, num_stages=2, in_flight=in_flight, same_host=same_host),
        evaluation=evaluation,
    )
