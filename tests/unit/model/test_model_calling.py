"""Which arguments forward gets for what a data source gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.calling import arguments_of

X, Y = torch.ones(2, 3), torch.zeros(2)


class Two(nn.Module):
    def forward(self, x: Any, mask: Any = None, *, scale: float = 1.0) -> Any:
        return x


class Anything(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args


class One(nn.Module):
    def forward(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(
    ("model", "inputs", "args", "kwargs"),
    [
        (Two(), X, (X,), {}),
        (Two(), (X, Y), (X, Y), {}),
        (Two(), (X,), (X,), {}),
        (Two(), [X, Y], ([X, Y],), {}),
        (Two(), {"mask": Y, "x": X, "scale": 2.0}, (), {"mask": Y, "x": X, "scale": 2.0}),
        (Two(), {"ids": X}, ({"ids": X},), {}),
        (Two(), {0: X}, ({0: X},), {}),
        (Two(), (X, Y, 3), ((X, Y, 3),), {}),
        (Anything(), (X, Y), (X, Y), {}),
        (Anything(), {"a": X}, (), {"a": X}),
        (One(), {"user": X, "item": Y}, ({"user": X, "item": Y},), {}),
        (One(), (X, Y), ((X, Y),), {}),
        (One(), None, (None,), {}),
    ],
)
def test_names_bind_to_names_and_tuples_to_places(model: nn.Module, inputs: Any, args: Any, kwargs: Any) -> None:
    found = arguments_of(model.forward, inputs)
    assert found == (args, kwargs)
    assert list(found[1]) == list(kwargs)
    model(*found[0], **found[1])


def test_a_function_that_python_cannot_look_into_gets_one_argument() -> None:
    assert arguments_of(torch.relu, (X, Y)) == (((X, Y),), {})


class Towers(nn.Module):
    def forward(self, user: Any, item: Any) -> Any:
        return user


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"user": X, "goods": Y}, "a dict with 'user', 'goods') do not fit the model's forward(user: "),
        ({"user": X}, "missing a required argument: 'item'"),
        ((X,), "a tuple of 1"),
        (X, "one Tensor"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_names_of_both(inputs: Any, said: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        arguments_of(Towers().forward, inputs)
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert said in str(caught.value)
    assert "user" in str(caught.value)
    assert "item" in str(caught.value)
