"""A model whose forward each test gives, and what planning says of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.core.flow import Flow
from pipesvc.errors import PipesvcError
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_language import D

Forward = Callable[[Any, Tensor], Any]


class Three(nn.Module):
    """Units a, b and c; each test gives the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(D, D) for _ in range(3))
        self.norm = nn.BatchNorm1d(D)


def flow_of(forward: Forward, cuts: Sequence[str] = ()) -> Flow:
    model = type("Model", (Three,), {"forward": forward})
    return record(build_module(model, 0, ()), Inputs((torch.randn(3, D),)), cuts=cuts)


def refusal_of(forward: Forward) -> str:
    with pytest.raises(PipesvcError) as caught:
        flow_of(forward)
    return str(caught.value)


def line_of(forward: Forward, offset: int) -> str:
    """`file:line` of the line so far below the head of a forward."""
    return f"{Path(forward.__code__.co_filename).relative_to(Path.cwd())}:{inspect.getsourcelines(forward)[1] + offset}"
