"""Layers of a list that share a parameter: each stage that holds it has its values, as one object."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipesvc.model.sequence import shared_parameters
from pipesvc.model.skeleton import build_layers, whole
from tests.unit.model.ranges import build_range

SEED = 7


def tied() -> list[nn.Module]:
    table, head = nn.Embedding(10, 4), nn.Linear(4, 10)
    nn.init.normal_(head.weight)
    head.weight = table.weight
    return [table, nn.Linear(4, 4), head]


def assert_same(one: nn.Module, other: nn.Module) -> None:
    state = other.state_dict()
    assert [name for name, value in one.state_dict().items() if not torch.equal(value, state[name])] == []


@pytest.mark.parametrize("owned", [[0], [2], [0, 2], [1, 2]])
def test_every_holder_has_the_values_of_the_whole(owned: list[int]) -> None:
    plain, built = whole(tied, SEED), build_layers(tied, SEED, owned)
    for index in owned:
        assert_same(plain[index][1], built[index][1])
    assert built[0][1].weight is built[2][1].weight
    names = shared_parameters(built)["0.weight"].names
    assert names == ["0.weight", "2.weight"]
    real = {name for name, each in nn.Sequential(*(layer for _, layer in built)).named_parameters() if not each.is_meta}
    wanted = {"0.weight", *(["1.weight", "1.bias"] if 1 in owned else []), *(["2.bias"] if 2 in owned else [])}
    assert real == wanted


def test_who_holds_none_of_the_sharers_holds_no_value() -> None:
    built = build_layers(tied, SEED, [1])
    assert all(each.is_meta for index in (0, 2) for each in built[index][1].parameters())


def test_parameter_shared_within_a_stage_stays_one_object() -> None:
    (_, table), (_, middle), (_, head) = build_range(tied, SEED, 0, 3)
    assert table.weight is head.weight
    assert_same(whole(tied, SEED)[1][1], middle)


def test_one_layer_in_two_stages() -> None:
    def twice() -> list[nn.Module]:
        layer = nn.Linear(4, 4)
        return [layer, nn.Linear(4, 4), layer]

    plain, built = whole(twice, SEED), build_layers(twice, SEED, [2])
    assert_same(plain[2][1], built[2][1])
    assert built[0][1] is built[2][1]
    assert all(each.is_meta for each in built[1][1].parameters())
