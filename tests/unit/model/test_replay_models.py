"""The truth is the plain module: its results, gradients and buffers, for every model, number of stages and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pipesvc.core.flow import Flow, check_ends
from pipesvc.model.replay import nest
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_pipeline import Outcome, Pipeline, plain
from tests.unit.model.replay_zoo import ZOO, Case, loss_of

RECORDED = (4, 3)
OTHERS = ((2, 5), (3, 3), (2, 5), (5, 4))  # rows and positions of four micro-batches


def flow_of(case: Case) -> Flow:
    return record(build_module(case.build, 0, ()), case.inputs(*RECORDED))


def even_ends(flow: Flow, num_stages: int) -> tuple[int, ...]:
    return tuple(len(flow.units) * (stage + 1) // num_stages for stage in range(num_stages))


def assert_same(found: Outcome, expected: Outcome) -> None:
    for one, other in zip(found.results, expected.results, strict=True):
        assert_equal(one, other)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        assert torch.equal(found.gradients[name], gradient), name
    assert found.buffers.keys() == expected.buffers.keys()
    for name, buffer in expected.buffers.items():
        assert torch.equal(found.buffers[name], buffer), name


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    pairs = list(zip(nest.leaves(one), nest.leaves(other), strict=True))
    assert pairs
    for (path, leaf), (other_path, other_leaf) in pairs:
        assert path == other_path
        assert torch.equal(leaf, other_leaf) if isinstance(leaf, Tensor) else leaf == other_leaf


@pytest.mark.parametrize("name", ZOO)
def test_every_partition_has_the_bits_of_the_plain_module(name: str) -> None:
    case = ZOO[name]
    flow = flow_of(case)
    torch.manual_seed(1)
    batches = [case.inputs(*size) for size in OTHERS]
    expected = plain(case.build, batches, loss_of)
    all_ends: list[Sequence[int]] = [even_ends(flow, num_stages) for num_stages in (1, 2, 3, 4)]
    all_ends += [(end, len(flow.units)) for end in range(1, len(flow.units))]
    for ends in all_ends:
        check_ends(flow, ends)  # every place can be cut
        assert_same(Pipeline(case.build, flow, ends).step(batches, loss_of), expected)
