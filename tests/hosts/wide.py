"""A job whose boundary is much larger than its weights and its data: 1 MiB of activations each way, each step."""

from __future__ import annotations

import torch
from torch import nn

import pipesvc
from tests.integration import jobs

WIDTH = 32_768
BATCH_ROWS = 8
MICRO_BATCHES = 2
NUM_STEPS = 64
BOUNDARY_BYTES = NUM_STEPS * BATCH_ROWS * WIDTH * 4
SEED = 5
LEARNING_RATE = 0.001


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(jobs.WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, jobs.NUM_CLASSES))


def make_job(num_steps: int = NUM_STEPS) -> pipesvc.Job:
    """Two stages, on the two workers in the order of their registration."""
    return pipesvc.Job(
        model=build,
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=LEARNING_RATE),
        data=pipesvc.DataSource(
            pipesvc.Call(jobs.samples, num_rows=num_steps * BATCH_ROWS), batch_size=BATCH_ROWS, capacity=8
        ),
        strategy=pipesvc.Strategy(micro_batches=MICRO_BATCHES, boundaries=(2,)),
        seed=SEED,
    )
