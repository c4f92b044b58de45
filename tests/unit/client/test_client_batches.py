from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pipesvc.client.batches import batches
from pipesvc.client.job import StreamSource
from pipesvc.errors import ErrorCode, PipesvcError


def _all(items: list[Any], **options: Any) -> list[Any]:
    return list(batches(StreamSource(items, **options)))


def test_samples_are_grouped_and_the_last_batch_is_short() -> None:
    items = [(torch.full((2,), float(n)), n) for n in range(5)]
    made = _all(items, batch_size=2)
    assert [tuple(inputs.shape) for inputs, _ in made] == [(2, 2), (2, 2), (1, 2)]
    assert [labels.tolist() for _, labels in made] == [[0, 1], [2, 3], [4]]
    assert made[0][1].dtype == torch.int64


def test_drop_last_leaves_the_short_batch_out() -> None:
    assert len(_all([(n, n) for n in range(5)], batch_size=2, drop_last=True)) == 2


def test_trees_arrays_and_numbers_are_stacked() -> None:
    items = [({"a": np.zeros(3, np.float32), "b": [1.5, n]}, (True, np.int32(n))) for n in range(2)]
    [(inputs, labels)] = _all(items, batch_size=2)
    assert inputs["a"].shape == (2, 3)
    assert inputs["b"][0].dtype == torch.float32
    assert inputs["b"][1].tolist() == [0, 1]
    assert labels[0].dtype == torch.bool


def test_sample_lists_and_batches() -> None:
    [inputs] = _all([[torch.zeros(2), torch.ones(2)]], batch_size=2, yields="sample_list", labels=False)
    assert inputs.tolist() == [[0, 0], [1, 1]]


def test_whole_batches_are_copied_because_the_source_may_use_its_buffers_again() -> None:
    buffer, array = torch.zeros(4, 2), np.zeros(4)
    [(inputs, labels)] = _all([[{"x": buffer, "n": 3}, array]], yields="batch")
    buffer.fill_(1)
    array.fill(1)
    assert inputs["x"].sum() == 0
    assert inputs["n"] == 3
    assert labels.sum() == 0


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([torch.zeros(2)] * 2, "a Tensor where"),
        ([(1, 2, 3)] * 2, "a tuple of 3 where"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "do not make a batch"),
        ([("text", 0), ("text", 0)], "a sample with a str"),
        ([({"a": 1}, 0), ({"b": 1}, 0)], "a dict with"),
        ([((1, 2), 0), ((1,), 0)], "a tuple of 1"),
    ],
)
def test_what_makes_no_batch_is_told(items: list[Any], words: str) -> None:
    with pytest.raises(PipesvcError, match=words) as caught:
        _all(items, batch_size=2)
    assert caught.value.code is ErrorCode.DATA_SOURCE_FAILED
