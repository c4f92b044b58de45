"""Mini-batches as tests cut them, and what two trainings are compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipesvc.core import split
from pipesvc.wire import layouts, tree
from tests.unit.executor.memory_network import is_tensor

# One mini-batch: the micro-batches' inputs, their labels (None: the job has none), their weights.
Batch = tuple[list[Any], list[Any] | None, list[float]]
PlainRun = tuple[list[float], dict[str, Tensor]]  # losses, and the state by name


def assert_equal_states(state: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> None:
    assert list(state) == list(plain)
    differing = [name for name in plain if not torch.equal(state[name], plain[name])]
    assert differing == []


def copied(value: Any) -> Any:
    structure, leaves = tree.flatten(value, is_tensor)
    return tree.unflatten(structure, [layouts.copy_of(each) for each in leaves])


def cut_rows(value: Any, rows: Sequence[int]) -> list[Any]:
    """A batch as micro-batches."""
    structure, leaves = tree.flatten(value, is_tensor)
    parts = [each.split(list(rows)) for each in leaves]
    return [tree.unflatten(structure, [part[index] for part in parts]) for index in range(len(rows))]


def batch_of(inputs: Any, labels: Any, num_rows: int, num_micro_batches: int) -> Batch:
    rows = split.micro_batch_rows(num_rows, num_micro_batches)
    return cut_rows(inputs, rows), None if labels is None else cut_rows(labels, rows), [float(each) for each in rows]
