"""Turns of pipesvc on a service that is there: each is a run of its own, measured by the service's own step records.

Coordinator and agents stay between turns, as they do for users, and take what their beats take, half a percent of a
core. What computes, and the links between, is new in each turn; it is started before the first step and gone after the
last, so none of it runs while another contender is measured.
"""

from __future__ import annotations

from dataclasses import replace

import torch

import pipesvc
from benchmarks import gpt
from benchmarks.rounds import Turn
from benchmarks.sizes import LEARNING_RATE, MODEL_SEED
from benchmarks.workloads import Workload


def make_job(what: Workload, strategy: pipesvc.Strategy) -> pipesvc.Job:
    """Its number of micro-batches is that of the workload."""
    return pipesvc.Job(
        model=pipesvc.Call(what.build, **what.arguments),
        loss=what.loss,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=LEARNING_RATE),
        data=pipesvc.DataSource(pipesvc.Call(gpt.same_batch_for_ever, **what.batch), yields="batch"),
        strategy=replace(strategy, micro_batches=what.num_micro_batches),
        max_steps=what.num_steps,
        seed=MODEL_SEED,
    )


def run_turn(client: pipesvc.Client, job: pipesvc.Job, num_warm_up_steps: int) -> Turn:
    run = client.submit(job)
    steps = list(run.steps())
    run.wait()  # until its weights are saved and its processes are gone
    return Turn(
        step_ends_ns=tuple(round(step.time * 1e9) for step in steps),
        losses=tuple(step.loss for step in steps),
        num_warm_up_steps=num_warm_up_steps,
    )
