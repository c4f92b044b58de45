"""An order of layers is accepted where the user wrote it, and nowhere else."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.sequence import is_list, layers_of, shared_parameters


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x


class OwnParameter(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2))
        self.scale = nn.Parameter(torch.ones(1))


class PlainSubclass(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def _hooked() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_forward_hook(lambda *_: None)
    return model


def test_names_are_those_of_the_state_dict() -> None:
    named = nn.Sequential(OrderedDict([("embed", nn.Embedding(2, 2)), ("head", nn.Linear(2, 2))]))
    assert [name for name, _ in layers_of(named)] == ["embed", "head"]
    for model in (
        [nn.Linear(2, 2), nn.ReLU()],
        (nn.Linear(2, 2), nn.ReLU()),
        nn.ModuleList([nn.Linear(2, 2), nn.ReLU()]),
    ):
        assert [name for name, _ in layers_of(model)] == ["0", "1"]


def test_w05_nested_sequential_is_one_layer() -> None:
    assert [type(layer) for _, layer in layers_of(PlainSubclass())] == [nn.Linear, nn.Sequential]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Linear(2, 2), "Linear, whose order"),
        (OwnForward(nn.Linear(2, 2)), "forward of its own"),
        (OwnParameter(), "'scale' itself"),
        (_hooked(), "hooks"),
        ([], "no layers"),
        (nn.Sequential(), "no layers"),
        ([nn.Linear(2, 2), torch.relu], "layer '1' of the model is a builtin_function_or_method"),
        ([nn.Linear(2, 2), None], "layer '1' of the model is missing"),
        ([nn.ModuleList([nn.Linear(2, 2)])], "layer '0' .ModuleList. has no forward"),
        ({"a": nn.Linear(2, 2)}, "dict, whose order"),
    ],
    ids=[
        "module",
        "forward",
        "parameter",
        "hooks",
        "empty",
        "empty_sequential",
        "function",
        "none",
        "no_forward",
        "dict",
    ],
)
def test_what_is_no_sequence_is_refused_with_the_way_out(model: Any, text: str) -> None:
    with pytest.raises(PipesvcError, match=text) as caught:
        layers_of(model)
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert "nn.Sequential" in caught.value.details.advice


def test_a_module_with_a_forward_of_its_own_is_no_list() -> None:
    layers = [nn.Linear(2, 2), nn.ReLU()]
    for listed in (layers, nn.Sequential(*layers), nn.ModuleList(layers), PlainSubclass(), [], {"a": layers[0]}, None):
        assert is_list(listed)
    patched = nn.Sequential(*layers)
    patched.forward = lambda x: x  # type: ignore[method-assign]
    for module in (layers[0], OwnForward(*layers), OwnParameter(), _hooked(), patched):
        assert not is_list(module)


def test_one_module_in_two_places_is_refused_if_its_state_may_change() -> None:
    linear, relu, norm = nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2, affine=False)
    assert len(layers_of([linear, relu, linear, relu])) == 4
    with pytest.raises(PipesvcError, match="'0' and '2' are the same BatchNorm1d object") as caught:
        layers_of([norm, relu, norm])
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert "'running_mean' may change in forward" in caught.value.details.message


def test_shared_parameters_are_told_with_all_layers_and_names() -> None:
    table, head = nn.Embedding(10, 4), nn.Linear(4, 10)
    head.weight = table.weight
    ((name, shared),) = shared_parameters(layers_of([nn.ReLU(), table, table, head])).items()
    assert name == "1.weight"
    assert shared.parameter is table.weight
    assert (shared.layers, shared.names) == ([1, 2, 3], ["1.weight", "2.weight", "3.weight"])
