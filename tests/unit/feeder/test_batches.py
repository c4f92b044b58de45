"""Samples to batches, batches to micro-batches, and which batches are let through."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.wire import collate
from pipesvc.worker.feeder.batches import Gate, RawBatch, RawStep, cut_step, raw_batch
from tests.unit.feeder import sources


def step(*sizes: int) -> RawStep:
    return RawStep(batches=tuple(map(raw, sizes)))


def raw(num_rows: int) -> RawBatch:
    return raw_batch(0, (torch.ones(num_rows, 2), torch.arange(num_rows)), has_labels=True)


def test_stacked_trees() -> None:
    samples = [
        ({"x": np.array([1.0, 2.0], dtype=np.float32), "n": 1, "f": 0.5}, (torch.tensor(3), True)),
        ({"x": np.array([3.0, 4.0], dtype=np.float32), "n": 2, "f": 1.5}, (torch.tensor(4), False)),
    ]
    inputs, labels = collate.stacked(samples)
    assert torch.equal(inputs["x"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert torch.equal(inputs["n"], torch.tensor([1, 2]))
    assert (inputs["f"].dtype, inputs["f"].tolist()) == (torch.float32, [0.5, 1.5])
    assert torch.equal(labels[0], torch.tensor([3, 4]))
    assert torch.equal(labels[1], torch.tensor([True, False]))


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([torch.ones(2), torch.ones(3)], r"float32 \(2,\) and float32 \(3,\)"),
        ([{"a": 1}, {"b": 1}], r"keys \['a'\] and a dict with the keys \['b'\]"),
        ([(1, 2), (1, 2, 3)], "a tuple of 2 and a tuple of 3"),
        ([(1, 2), [1, 2]], "tuple and list"),
        (["a", "b"], "a sample with a str"),
    ],
)
def test_samples_that_make_no_batch_are_refused(samples: list[Any], text: str) -> None:
    with pytest.raises(PipesvcError, match=text) as caught:
        collate.stacked(samples)
    assert caught.value.code is ErrorCode.DATA_SOURCE_FAILED


class Point(NamedTuple):
    x: Any
    y: Any


class Names(list[Any]):
    pass


@pytest.mark.parametrize(
    ("value", "text", "advice"),
    [
        (Point(torch.ones(2), torch.ones(2)), "a namedtuple Point, .* plain tuple", "tuple(value) or value._asdict()"),
        (OrderedDict(a=torch.ones(2)), "an? OrderedDict, .* plain dict", "dict(value)"),
        (Names([torch.ones(2)]), "a Names, .* plain list", "list(value)"),
    ],
)
def test_containers_of_their_own_type_are_refused(value: Any, text: str, advice: str) -> None:
    calls: list[tuple[Any, Any]] = [(collate.stacked, [(value, 1), (value, 2)]), (collate.owned, {"key": value})]
    for collated, given in calls:
        with pytest.raises(PipesvcError, match=text) as caught:
            collated(given)
        assert caught.value.code is ErrorCode.DATA_SOURCE_FAILED
        assert advice in caught.value.details.advice


def test_cut_gives_rows_to_each_and_the_rest_to_all() -> None:
    value = {"x": torch.arange(5), "scalar": torch.tensor(7), "pair": (torch.arange(10).reshape(5, 2), None, 3)}
    first, second = collate.cut(value, (3, 2))
    assert first["x"].tolist() == [0, 1, 2]
    assert second["pair"][0].tolist() == [[6, 7], [8, 9]]
    assert (second["scalar"].item(), second["pair"][1:]) == (7, (None, 3))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((torch.ones(3), torch.ones(4)), "tensors of 3 and 4 rows"),
        ((torch.ones(()), 3), "no tensor with rows"),
        ((torch.ones(0, 2), torch.ones(0)), "tensors of 0 rows"),
        (torch.ones(3), "gave a Tensor where a pair"),
        ((torch.ones(3),), "gave a tuple of 1 where a pair"),
    ],
)
def test_batches_without_common_rows_or_labels_are_refused(value: Any, text: str) -> None:
    with pytest.raises(PipesvcError, match=text):
        raw_batch(0, value, has_labels=True)


def test_n02_shares_are_those_of_rows() -> None:
    cut = cut_step(step(5), 2, None, Where())
    assert (cut.rows, cut.shares) == ((3, 2), (0.6, 0.4))
    assert cut.labels is not None
    assert [each.tolist() for each in cut.labels] == [[0, 1, 2], [3, 4]]


def test_n03_weight_function_sees_the_whole_batch() -> None:
    seen = []

    def weight(labels: torch.Tensor) -> list[int]:
        seen.append(labels.tolist())
        return [1, 0, 0, 4, 5]

    cut = cut_step(step(5), 2, weight, Where())
    assert seen == [[0, 1, 2, 3, 4]]
    assert cut.shares == (0.1, 0.9)


def test_n17_short_batch_has_a_micro_batch_per_row() -> None:
    assert cut_step(step(3), 4, None, Where()).rows == (1, 1, 1)


@pytest.mark.parametrize(
    ("weight", "code", "text"),
    [
        (sources.one_weight, ErrorCode.INVALID_JOB, r"shape \(\) for a batch of 5 rows"),
        (sources.failing_weight, ErrorCode.DATA_SOURCE_FAILED, "the weight function: KeyError: 'weight'"),
        (lambda labels: labels * 0, ErrorCode.INVALID_JOB, "sum to 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(weight: Any, code: ErrorCode, text: str) -> None:
    with pytest.raises(PipesvcError, match=text) as caught:
        cut_step(step(5), 2, weight, Where())
    assert caught.value.code is code


def through(gate: Gate, sizes: list[int]) -> list[int]:
    steps = [each for size in sizes for each in gate.push(raw(size))] + gate.end()
    assert all(len(each.batches) == 1 for each in steps)
    return [each.batches[0].num_rows for each in steps]


@pytest.mark.parametrize(
    ("sizes", "drops_last", "passed"),
    [
        ([4, 4, 3], False, [4, 4, 3]),
        ([4, 4, 3], True, [4, 4]),
        ([4, 4, 4], True, [4, 4, 4]),
        ([6, 5, 6], True, [6, 5, 6]),
        ([6, 5], True, [6]),
        ([3], False, [3]),
        ([], False, []),
    ],
)
def test_gate_knows_the_last_batch(sizes: list[int], drops_last: bool, passed: list[int]) -> None:
    assert through(Gate(num_micro_batches=4, drops_last=drops_last, full_rows=0), sizes) == passed


@pytest.mark.parametrize("drops_last", [False, True])
def test_p09_short_batch_that_is_not_the_last_is_refused(drops_last: bool) -> None:
    gate = Gate(num_micro_batches=4, drops_last=drops_last, full_rows=0)
    with pytest.raises(PipesvcError, match="a batch of 2 rows, not the last of its epoch") as caught:
        through(gate, [4, 2, 4])
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_the_gate_joins_what_it_lets_through() -> None:
    gate = Gate(num_micro_batches=4, num_joined=2, drops_last=False, full_rows=0)
    steps = [[each.num_rows for each in step.batches] for size in (4, 5, 6, 4, 3) for step in gate.push(raw(size))]
    assert steps == [[4, 5], [6, 4]]
    assert [[each.num_rows for each in step.batches] for step in gate.end()] == [[3]]
    assert gate.end() == []


def test_joined_mini_batches_weigh_by_all_their_rows_and_each_is_weighed_alone() -> None:
    seen: list[int] = []

    def weight(labels: torch.Tensor) -> torch.Tensor:
        seen.append(len(labels))
        return labels > 1

    cut = cut_step(step(5, 3), 2, weight, Where())
    assert seen == [5, 3]
    assert cut.rows == (3, 2, 2, 1)
    assert cut.shares == (1 / 4, 2 / 4, 0.0, 1 / 4)
    assert cut_step(step(5, 3), 2, None, Where()).shares == (3 / 8, 2 / 8, 2 / 8, 1 / 8)
    assert cut.labels is not None
    assert [each.tolist() for each in cut.labels] == [[0, 1, 2], [3, 4], [0, 1], [2]]
