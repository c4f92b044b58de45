"""Cuts by name, without times."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import numpy as np
import pytest

from pipesvc.core.costs import LayerCost
from pipesvc.core.partition_methods import balanced, edges_of, type_weights
from pipesvc.errors import PipesvcError


def _layers(types: str, parameter_bytes: list[int] | None = None) -> list[LayerCost]:
    return [
        LayerCost(name=str(index), type=name, parameter_bytes=(parameter_bytes or [0] * 99)[index])
        for index, name in enumerate(types.split())
    ]


def _edges(method: str, layers: list[LayerCost], num_stages: int) -> tuple[int, ...]:
    return edges_of(method, layers, num_stages, np.ones(len(layers) + 1, np.bool_), ())


def _counts(edges: tuple[int, ...]) -> list[int]:
    return [end - first for first, end in pairwise(edges)]


@pytest.mark.parametrize(("num_layers", "num_stages", "largest"), [(5, 4, 2), (42, 16, 3)], ids=["5_on_4", "42_on_16"])
@pytest.mark.parametrize("method", ["uniform", "parameters", "type:Block"])
def test_p01_no_stage_is_empty_and_the_largest_is_as_small_as_can_be(
    method: str, num_layers: int, num_stages: int, largest: int
) -> None:
    counts = _counts(_edges(method, _layers("Block " * num_layers, [4] * num_layers), num_stages))
    assert (len(counts), sum(counts), max(counts), min(counts) > 0) == (num_stages, num_layers, largest, True)


def test_p02_a_count_that_does_not_divide_places_every_layer_once() -> None:
    for num_layers in range(1, 24):
        for num_stages in range(1, num_layers + 1):
            edges = _edges("uniform", _layers("Block " * num_layers), num_stages)
            assert (edges[0], edges[-1], len(edges)) == (0, num_layers, num_stages + 1)
            assert set(_counts(edges)) <= {num_layers // num_stages, -(-num_layers // num_stages)}


def test_p03_layers_are_counted_by_class_with_weights() -> None:
    layers = _layers("Embedding Block Block Block Block Norm Head")
    assert _edges("type:Block", layers, 2) == (0, 3, 7)
    assert _edges("type:Embedding:2|Block:1", layers, 2) == (0, 2, 7)
    assert type_weights("type:Embedding:2|Block:1", layers) == [2, 1, 1, 1, 1, 0, 0]
    assert type_weights("type:^B:0.5|.", layers) == [1, 0.5, 0.5, 0.5, 0.5, 1, 1]


def test_parameters_balance_bytes() -> None:
    assert _edges("parameters", _layers("A " * 5, [9, 1, 1, 1, 9]), 3) == (0, 1, 4, 5)


@pytest.mark.parametrize(
    "method",
    ["type:", "type:Block:", "type:Block:x", "type:Block|", "type:(", "type::2", "type:a:1:2", "type:a)|b", "type:[|b"],
)
def test_a_weight_that_cannot_be_read_is_refused_with_an_example(method: str) -> None:
    with pytest.raises(PipesvcError, match=r"type:Embedding:2\|Block:1"):
        _edges(method, _layers("Block Block"), 2)


def test_a_bar_within_brackets_or_after_a_backslash_parts_nothing() -> None:
    layers = _layers("Linear ReLU Conv|d Norm")
    assert type_weights("type:(Linear|ReLU)", layers) == [1, 1, 0, 0]
    assert type_weights("type:(?:Lin|(Re|No))+:3|Conv", layers) == [3, 3, 1, 3]
    assert type_weights("type:[|]d:2|N", layers) == [0, 0, 2, 1]
    assert type_weights(r"type:v\|d:2|[(]|[]|]x|[^]|C]orm", layers) == [0, 0, 2, 1]


@pytest.mark.parametrize("digits", ["9" * 400, "1" + "0" * 101])
@pytest.mark.filterwarnings("error")
def test_a_weight_that_no_sum_can_hold_is_refused_as_a_weight(digits: str) -> None:
    with pytest.raises(PipesvcError, match=r"the weight of 'Block' is above 1e\+100"):
        _edges(f"type:Block:{digits}", _layers("Block Block"), 2)
    assert _edges("type:Block:1" + "0" * 100, _layers("Block Block"), 2) == (0, 1, 2)


def test_a_class_that_no_layer_has_is_refused_with_the_classes() -> None:
    with pytest.raises(PipesvcError, match="their types are Block, Head"):
        _edges("type:Blok", _layers("Block Head"), 2)


def test_an_unknown_method_is_refused_with_the_methods() -> None:
    with pytest.raises(PipesvcError, match='"uniform"'):
        _edges("flops", _layers("Block Block"), 2)


@pytest.mark.parametrize("num_stages", [3, 2**31 - 1])
@pytest.mark.parametrize("method", ["uniform", "parameters", "type:Block"])
def test_more_stages_than_layers_are_refused_at_once(method: str, num_stages: int) -> None:
    with pytest.raises(PipesvcError, match=f"2 layers cannot fill {num_stages} stages"):
        _edges(method, _layers("Block Block"), num_stages)


def test_balanced_keeps_the_heaviest_stage_light_though_another_cut_is_more_even() -> None:
    """7 | 7 3 | 12 4 has the smaller sum of squares, and 16 where 15 is possible."""
    assert balanced([7.0, 7.0, 3.0, 12.0, 4.0], 3, np.ones(6, np.bool_), ()) == (0, 2, 4, 5)


def test_balanced_is_the_best_of_all_cuts_that_are_allowed() -> None:
    """By the heaviest stage, then by squares, then by small early stages."""
    rng = random.Random(0)
    for _ in range(1000):
        num_layers = rng.randint(1, 8)
        weights = [float(rng.randint(0, 20)) for _ in range(num_layers)]
        inner = [edge for edge in range(1, num_layers) if rng.random() < 0.9]
        must_cut = [edge for edge in inner if rng.random() < 0.1]
        num_stages = rng.randint(len(must_cut) + 1, len(inner) + 1)
        may_cut = np.isin(np.arange(num_layers + 1), [0, *inner, num_layers])

        def rank(edges: tuple[int, ...], weights: list[float] = weights) -> tuple[float, float, tuple[int, ...]]:
            sums = [sum(weights[first:end]) for first, end in pairwise(edges)]
            return max(sums), sum(each**2 for each in sums), edges

        cuts = [(0, *cut, num_layers) for cut in combinations(inner, num_stages - 1) if {*must_cut} <= {*cut}]
        assert balanced(weights, num_stages, may_cut, must_cut) == min(cuts, key=rank)
