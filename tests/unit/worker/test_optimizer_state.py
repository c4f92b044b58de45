"""How much state optimizers keep for each byte of gradients, against what they keep for a real model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pipesvc.worker.optimizer_state import state_per_gradient
from pipesvc.worker.profiler.kept_bytes import num_bytes, optimizer_bytes


class _KeepsLittle(torch.optim.Optimizer):
    """A number for each row."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["row"] = torch.zeros(parameter.shape[0])


def _fails(_: Any) -> torch.optim.Optimizer:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (partial(torch.optim.SGD, lr=0.1), 0.0),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1.0),
        (torch.optim.Adam, 2.0),
        (partial(torch.optim.AdamW, amsgrad=True, foreach=True), 3.0),
        (torch.optim.Adagrad, 1.0),
        (_KeepsLittle, 0.0),
        (torch.optim.LBFGS, 0.0),  # wants a closure
        (_fails, 0.0),
    ],
)
def test_what_is_kept_for_each_byte(make: Callable[..., torch.optim.Optimizer], least: float) -> None:
    assert state_per_gradient(make) == least


@pytest.mark.parametrize(
    "name", ["Adadelta", "Adafactor", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
)
def test_it_is_never_more_than_a_model_needs(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(72, 40), nn.LayerNorm(40), nn.Linear(40, 1))
    make = getattr(torch.optim, name)
    optimizer = make(model.parameters())
    model(torch.ones(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    gradients = num_bytes(each.grad for each in model.parameters())
    assert state_per_gradient(make) * gradients <= optimizer_bytes([optimizer])
