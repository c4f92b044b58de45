"""Runs one turn of pipesvc: the whole service, started for it and ended after it, measured by its own step records.

A coordinator, two workers with their agents and children, and this process as the client: what a user would start.
All of it runs while its steps are timed, and none of it while another contender is.
"""

from __future__ import annotations

from dataclasses import asdict

import torch

import pipesvc
from benchmarks import gpt
from benchmarks.rounds import NUM_STEPS, Turn
from benchmarks.sizes import DATA_SEED, LEARNING_RATE, MODEL_SEED, Sizes


def make_job(sizes: Sizes, *, schedule: str, num_stages: int, in_flight: int | None = None) -> pipesvc.Job:
    source = pipesvc.Call(
        gpt.same_batch_for_ever,
        num_rows=sizes.num_rows,
        context=sizes.model.context,
        vocabulary=sizes.model.vocabulary,
        seed=DATA_SEED,
    )
    return pipesvc.Job(
        model=pipesvc.Call(gpt.build_model, **asdict(sizes.model)),
        loss=gpt.token_loss,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=LEARNING_RATE),
        data=pipesvc.DataSource(source, yields="batch"),
        strategy=pipesvc.Strategy(
            micro_batches=sizes.num_micro_batches,
            schedule=schedule,
            boundaries=sizes.boundaries(num_stages),
            in_flight=in_flight,
        ),
        max_steps=NUM_STEPS,
        seed=MODEL_SEED,
    )


def run_turn(sizes: Sizes, *, schedule: str, num_workers: int, in_flight: int | None = None) -> Turn:
    job = make_job(sizes, schedule=schedule, num_stages=num_workers, in_flight=in_flight)
    with pipesvc.LocalCluster(num_workers=num_workers, num_threads=1) as client:
        steps = list(client.submit(job).steps())
    return Turn(step_ends_ns=tuple(round(step.time * 1e9) for step in steps), losses=tuple(step.loss for step in steps))
