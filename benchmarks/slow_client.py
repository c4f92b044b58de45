"""A client on a host of its own, which a benchmark asks to plan and run jobs: one JSON object a line, in and out.

    python -m benchmarks.slow_client ADDRESS

A request names what makes the job (`JOBS`), its arguments, the strategy's codec, and the number of steps. The answer
has what the plan predicts and when each step ended.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import torch

import pipesvc
from benchmarks import service_turn, sleeping
from benchmarks.sizes import DATA_SEED, LEARNING_RATE, MODEL_SEED
from benchmarks.workloads import WORKLOADS

# One stage on each of two workers. Namespaces of one machine would find the short cut between them.
_OPEN: Final[Mapping[str, Any]] = {"schedule": "auto", "boundaries": "auto", "num_stages": 2, "same_host": False}


def workload_job(name: str) -> pipesvc.Job:
    """One of those of the other benchmarks."""
    return service_turn.make_job(WORKLOADS[name], pipesvc.Strategy())


def sleeping_job(model: Mapping[str, float], micro_batch_rows: int, num_micro_batches: int) -> pipesvc.Job:
    source = pipesvc.Call(sleeping.same_batch_for_ever, num_rows=micro_batch_rows * num_micro_batches, seed=DATA_SEED)
    return pipesvc.Job(
        model=pipesvc.Call(sleeping.build_model, **model),
        loss=sleeping.loss,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=LEARNING_RATE),
        data=pipesvc.DataSource(source, yields="batch"),
        strategy=pipesvc.Strategy(micro_batches=num_micro_batches),
        seed=MODEL_SEED,
    )


JOBS: Final[Mapping[str, Callable[..., pipesvc.Job]]] = {"workload": workload_job, "sleeping": sleeping_job}


def answer(client: pipesvc.Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    job = JOBS[asked["job"]](**asked["arguments"])
    strategy = replace(job.strategy, **_OPEN, codec=pipesvc.Codec(**asked["codec"]))
    planned = client.plan(replace(job, strategy=strategy))
    run = client.submit(replace(job, strategy=planned.strategy, max_steps=asked["num_steps"]))
    steps = list(run.steps())
    return {
        "predicted_s": planned.report.step_s,
        "schedule": planned.report.schedule,
        "in_flight": planned.report.in_flight,
        "links": [asdict(link) for link in planned.report.links],
        "carried": run.links(),
        "step_ends_s": [step.time for step in steps],
        "losses": [step.loss for step in steps],
    }


def main() -> None:
    with pipesvc.connect(sys.argv[1]) as client:
        for line in sys.stdin:
            print(json.dumps(answer(client, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
