"""Marks by `device_guard`: where a layer was built counts, wherever it is attached."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.marks import device_guard, mark_of
from pipesvc.model.skeleton import whole
from tests.unit.model.ranges import build_range, inspect_layers


class Positions(nn.Module):
    """Registers a parameter and a buffer in a guard of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()
        with device_guard("gpu:2"):
            self.position = nn.Parameter(torch.zeros(8))
            self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_guard_is_found_at_the_top_of_the_package() -> None:
    assert pipesvc.device_guard is device_guard


def test_layers_built_inside_and_attached_outside_keep_their_place() -> None:
    with device_guard("cpu"):
        embedding = nn.Embedding(10, 8)
    with device_guard("gpu:0"):
        block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout())
        head = nn.Linear(8, 4)
    model = nn.Sequential(embedding, block, nn.Linear(8, 8), head)
    assert [mark_of(layer) for layer in model] == ["cpu", "gpu:0", "", "gpu:0"]


def test_list_built_inside_keeps_its_place() -> None:
    with device_guard("gpu:1"):
        layers = [nn.Linear(2, 2), nn.BatchNorm1d(2)]
    assert [mark_of(layer) for layer in nn.ModuleList(layers)] == ["gpu:1", "gpu:1"]


def test_innermost_guard_counts() -> None:
    with device_guard("gpu:1"):
        outer = nn.Linear(2, 2)
        with device_guard("gpu:2"):
            inner = nn.Linear(2, 2)
        after = nn.Linear(2, 2)
    outside = nn.Linear(2, 2)
    assert [mark_of(layer) for layer in (outer, inner, after, outside)] == ["gpu:1", "gpu:2", "gpu:1", ""]


def test_attaching_marks_what_has_no_mark_of_its_own() -> None:
    linear, relu = nn.Linear(2, 2), nn.ReLU()
    with device_guard("cpu:second"):
        placed = nn.Linear(2, 2)
    with device_guard("gpu:0"):
        model = nn.Sequential(linear, relu, placed)
    assert [mark_of(layer) for layer in model] == ["gpu:0", "gpu:0", "cpu:second"]


def test_guard_inside_a_module_marks_its_tensors_only() -> None:
    layer = Positions()
    assert mark_of(layer) == "gpu:2"
    assert mark_of(layer.inner) == ""


def test_one_layer_with_two_marks_is_refused() -> None:
    with device_guard("cpu"):
        first = nn.Linear(2, 2)
    with device_guard("gpu:0"):
        second = nn.Linear(2, 2)
    with pytest.raises(PipesvcError, match="cpu, gpu:0") as caught:
        mark_of(nn.Sequential(first, second))
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_deep_copy_keeps_its_mark_and_takes_that_of_a_guard_around_it() -> None:
    with device_guard("gpu:0"):
        block = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2))
    plain = nn.Linear(2, 2)
    copied = copy.deepcopy(block)
    with device_guard("gpu:1"):
        moved, marked = copy.deepcopy(block), copy.deepcopy(plain)
    assert [mark_of(each) for each in (copied, moved, marked, block, plain)] == ["gpu:0", "gpu:1", "gpu:1", "gpu:0", ""]


def test_marks_show_nowhere_else() -> None:
    with device_guard("gpu:0"):
        marked = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert list(marked.state_dict()) == list(plain.state_dict())
    assert repr(marked) == repr(plain)
    assert mark_of(marked) == "gpu:0"
    marked.load_state_dict(plain.state_dict(), strict=True)


@pytest.mark.parametrize("label", ["cpu:0", "gpu", "cuda:0", "gpu:-1", "", "GPU:0"])
def test_a_label_outside_the_grammar_is_refused_at_enter(label: str) -> None:
    with pytest.raises(PipesvcError) as caught, device_guard(label):
        pass
    assert caught.value.code is ErrorCode.UNKNOWN_DEVICE
    assert "gpu:N" in caught.value.details.advice


def test_guard_ends_with_an_exception() -> None:
    with pytest.raises(ValueError, match="boom"), device_guard("gpu:0"):
        raise ValueError("boom")
    assert mark_of(nn.Linear(2, 2)) == ""


def test_marks_are_seen_by_inspection_and_change_no_number() -> None:
    def build() -> nn.Sequential:
        with device_guard("cpu"):
            embedding = nn.Embedding(12, 6)
        with device_guard("gpu:0"):
            head = nn.Linear(6, 4)
        return nn.Sequential(embedding, head, nn.ReLU())

    assert [layer.mark for layer in inspect_layers(build)] == ["cpu", "gpu:0", ""]
    (name, head), _ = build_range(build, 3, 1, 3)
    assert (name, mark_of(head)) == ("1", "gpu:0")
    torch.testing.assert_close(head.state_dict(), whole(build, 3)[1][1].state_dict(), rtol=0, atol=0)
