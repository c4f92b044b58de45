"""What tests of evaluations submit: metrics, evaluation data, and jobs with and without an evaluation."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pipesvc
from tests.integration import jobs

Sample = tuple[Tensor, Tensor]


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(1) == labels).float().mean()


def largest(outputs: Tensor, labels: Tensor) -> float:
    return float(outputs.max())


def raises(outputs: Tensor, labels: Tensor) -> float:
    raise ZeroDivisionError("no rows of this class")


def no_number(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs


def only_of_full_batches(outputs: Tensor, labels: Tensor) -> float:
    if len(labels) < 8:
        raise ValueError(f"{len(labels)} rows")
    return 1.0


def shuffled(num_rows: int) -> Iterator[Sample]:
    """Draws from every generator that a source may draw from, and not only when it is opened."""
    rows = list(jobs.samples(num_rows))
    random.shuffle(rows)
    for row, label in rows:
        yield row + torch.rand(1) + float(np.random.rand()) + random.random(), label


def empty() -> Iterator[Sample]:
    yield from ()


def torn() -> Iterator[Sample]:
    yield from jobs.samples(9)
    raise KeyError("row 9 is torn")


def blocking() -> Iterator[Sample]:
    yield from jobs.samples(4)
    time.sleep(600)


def masked() -> Iterator[Sample]:
    """Two whole batches of 4 rows, of which only rows of the second one count."""
    for i, (row, label) in enumerate(jobs.samples(8)):
        yield row, torch.tensor(-1) if i < 5 else label


def make_job(evaluation: pipesvc.Evaluation | None, **changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": pipesvc.Call(jobs.mlp, depth=2),
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9),
        "data": pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=40), batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=2),
        "evaluation": evaluation,
    }
    return pipesvc.Job(**(options | changes))


def make_evaluation(source: Any = None, **changes: Any) -> pipesvc.Evaluation:
    rows = source or pipesvc.Call(jobs.samples, num_rows=22, seed=5)
    options: dict[str, Any] = {"data": pipesvc.DataSource(rows, batch_size=8), "metrics": {"accuracy": accuracy}}
    return pipesvc.Evaluation(**(options | changes))


class Structured(nn.Module):
    """Gives a dict with a tuple in it, whose parts are of several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(jobs.WIDTH, jobs.WIDTH)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(jobs.WIDTH, jobs.WIDTH)
        self.third = nn.Linear(jobs.WIDTH, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        first = self.first(x)
        second = self.second(self.drop(first))
        return {"logits": self.third(second), "states": (first, second), "name": "structured"}
