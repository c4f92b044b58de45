"""Outputs of a prediction: what a stage sends in parts is what the client gives, joined by rows."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pipesvc.client import outputs as joining
from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import local_pb2, run_pb2
from pipesvc.worker.executor import outputs

Pair = namedtuple("Pair", "left right")


@dataclass
class Given:
    logits: Tensor
    extra: Any = None


def sent(step: int, values: list[Any], rows: list[int]) -> Iterator[run_pb2.ReadOutputsResponse]:
    issue = local_pb2.IssueStep(step=step, rows=rows)
    parts = [part for index, value in enumerate(values) for part in outputs.parts(issue, index, value)]
    for index, part in enumerate(parts):
        yield run_pb2.ReadOutputsResponse(part=part, is_last=index == len(parts) - 1)


def joined(values: list[Any], rows: list[int]) -> Any:
    [(step, value)] = joining.batches(sent(7, values, rows))
    assert step == 7
    return value


def test_tensors_are_joined_by_rows_and_large_ones_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PART_BYTES", 16)
    first, second = torch.arange(12.0).reshape(3, 4), torch.arange(8.0).reshape(2, 4)
    assert torch.equal(joined([first, second], [3, 2]), torch.cat([first, second]))


def test_the_structure_is_the_models_own_in_plain_containers() -> None:
    values = [{"a": (torch.ones(n, 2), [torch.zeros(n)]), "n": 3, "none": None} for n in (2, 1)]
    found = joined(values, [2, 1])
    assert list(found) == ["a", "n", "none"]
    assert found["a"][0].shape == (3, 2)
    assert found["a"][1][0].shape == (3,)
    assert (found["n"], found["none"]) == (3, None)
    assert joined([Pair(torch.ones(1), torch.zeros(1))], [1]) == (torch.ones(1), torch.zeros(1))
    assert joined([Given(torch.ones(1))], [1]) == {"logits": torch.ones(1), "extra": None}


def test_types_of_all_kinds_and_empty_tensors_arrive() -> None:
    values = [torch.ones(2, 3, dtype=dtype) for dtype in (torch.bfloat16, torch.bool, torch.complex128)]
    found = joined([(*values, torch.zeros(2, 0))], [2])
    assert [each.dtype for each in found] == [torch.bfloat16, torch.bool, torch.complex128, torch.float32]
    assert found[3].shape == (2, 0)
    assert joined([{"nothing": None}], [2]) == {"nothing": None}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([torch.tensor(1.0), torch.tensor(2.0)], "has the shape [] for a micro-batch of 1 rows"),
        ([torch.ones(1, 2), torch.ones(1, 3)], "is not of one size in all micro-batches: [1, 2], [1, 3]"),
        ([{"a": 1}, {"a": 2}], "different numbers in them"),
    ],
)
def test_what_cannot_be_joined_is_refused_with_the_way_out(values: list[Any], said: str) -> None:
    with pytest.raises(PipesvcError, match="micro_batches=1") as caught:
        joined(values, [1, 1])
    assert said in caught.value.details.message


def test_a_batch_that_broke_off_begins_anew() -> None:
    value = torch.arange(4.0).reshape(4, 1)
    whole = list(sent(7, [value[:2], value[2:]], [2, 2]))
    [(_, found)] = joining.batches([whole[0], *whole])
    assert torch.equal(found, value)


def test_an_object_that_cannot_travel_is_named() -> None:
    with pytest.raises(PipesvcError, match="cannot be sent to the client"):
        list(sent(1, [{"cache": object()}], [1]))


@pytest.mark.parametrize(
    ("order", "place"),
    [
        ([0, 2, 3], "tensor 0 of micro-batch 0, byte 32"),  # a piece is missing
        ([0, 1, 1, 2, 3], "tensor 0 of micro-batch 0, byte 16"),  # and one that came twice
        ([3], "tensor 0 of micro-batch 1, byte 0"),  # a whole micro-batch is missing
        ([0, 3], "tensor 0 of micro-batch 1, byte 0"),  # and the rest of a tensor
    ],
)
def test_a_gap_and_a_part_that_came_twice_are_told_and_never_joined(
    monkeypatch: pytest.MonkeyPatch, order: list[int], place: str
) -> None:
    monkeypatch.setattr(outputs, "PART_BYTES", 16)
    first, second = torch.arange(12.0).reshape(3, 4), torch.arange(4.0).reshape(1, 4)
    whole = list(sent(7, [first, second], [3, 1]))
    assert [(each.part.micro_batch, each.part.offset) for each in whole] == [(0, 0), (0, 16), (0, 32), (1, 0)]
    with pytest.raises(PipesvcError, match="came with a gap or twice") as caught:
        list(joining.batches([whole[index] for index in order]))
    assert place in caught.value.details.message


def test_an_end_that_came_early_is_no_batch() -> None:
    whole = list(sent(7, [torch.ones(3, 4), torch.ones(1, 4)], [3, 1]))
    whole[0].is_last = True
    with pytest.raises(PipesvcError, match="came with a gap or twice"):
        list(joining.batches(whole[:1]))
