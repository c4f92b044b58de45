"""What torch cannot answer for tensors without values, what depends on chance, and what runs on shapes may not show."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipesvc.errors import PipesvcError
from pipesvc.model import zeros
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from tests.unit.executor.batches import Batch
from tests.unit.executor.module_network import ModuleSetup, train_both
from tests.unit.model.replay_language import D
from tests.unit.model.replay_refusal import Three, flow_of, line_of, refusal_of
from tests.zoo.case import square_loss


def train(build: Any, num_micro_batches: int = 3) -> None:
    """On every way to cut it in two."""
    torch.manual_seed(1)
    batch: Batch = ([torch.randn(3, D) for _ in range(num_micro_batches)], None, [3.0] * num_micro_batches)
    sample = batch[0][0]
    num_units = len(ModuleSetup(build=build, sample=sample, parts=1).flow.units)
    for end in range(1, num_units):
        train_both(
            ModuleSetup(build=build, sample=sample, parts=2, ends=(end, num_units), loss=square_loss), [batch] * 3
        )


class Grouped(nn.Module):
    """Torch's answer on shapes takes bfloat16 alone, its kernel for CPUs takes float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, D, D))

    def forward(self, x: Tensor) -> Any:
        return torch.nn.functional.grouped_mm(x, self.weight, offs=torch.tensor([1, len(x)], dtype=torch.int32))


class GroupedUnits(Three):
    def __init__(self) -> None:
        super().__init__()
        self.grouped = Grouped()
        self.weight = nn.Parameter(torch.randn(1, D, D))

    def forward(self, x: Tensor) -> Any:
        h = self.grouped(self.a(x))
        h = torch.nn.functional.grouped_mm(h, self.weight, offs=torch.tensor([len(x)], dtype=torch.int32))
        return self.c(self.b(h))


class Spelling(Three):
    """`ctc_loss` has no answer on shapes; its lengths are computed."""

    def forward(self, x: Tensor) -> Any:
        h = self.b(self.a(x)).log_softmax(-1)[:, None]
        lengths = torch.ones_like(x[:1, 0], dtype=torch.long) * len(x)
        loss = torch.nn.functional.ctc_loss(h, torch.tensor([[1, 2]]), lengths, torch.tensor([2]))
        return self.c(x) * loss


@pytest.mark.parametrize("build", [GroupedUnits, Spelling])
def test_an_operator_without_an_answer_on_shapes_is_tried_with_zeros(build: Any) -> None:
    train(build)


def test_a_large_operator_is_not_tried_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeros, "MOST_BYTES", 100)
    with pytest.raises(PipesvcError, match=r"`ctc_loss` at .* reads the value of a tensor"):
        record(build_module(Spelling, 0, ()), Inputs((torch.randn(3, D),)))


def test_an_error_of_the_user_stays_what_it_is() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return self.b(self.a(x) @ torch.ones(D + 1, D))

    with pytest.raises(RuntimeError, match="same reduction dim"):
        flow_of(forward)


class Averaging(Three):
    """BatchNorm that counts its batches, for an average over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D, momentum=None)

    def forward(self, x: Tensor) -> Any:
        return self.b(self.norm(self.a(x)))


def test_n20_a_cumulative_average_of_batch_norm_counts_micro_batches() -> None:
    train(Averaging)


def test_a_branch_on_a_random_number_is_refused_with_its_line() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        if torch.rand([]) * 2 < 0.1:
            h = self.b(h)
        return self.c(h)

    text = refusal_of(forward)
    assert "branches on a random number" in text
    assert line_of(forward, 2) in text
    assert "layerdrop=0.0" in text
    assert "pipeline=False" in text


def test_random_numbers_that_decide_nothing_are_no_matter() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return self.c(self.b(self.a(x) * torch.rand(D)) + torch.randint(3, (D,)))

    assert [unit.name for unit in flow_of(forward).units] == ["a", "b", "c"]


class Reentrant(nn.Linear):
    """The older checkpoint warns where none of its arguments wants a gradient: on shapes none does."""

    def forward(self, x: Tensor) -> Any:
        return checkpoint(super().forward, x, use_reentrant=True)


class ReentrantUnits(Three):
    def __init__(self) -> None:
        super().__init__()
        self.b = Reentrant(D, D)

    def forward(self, x: Tensor) -> Any:
        return self.c(self.b(self.a(x)))


def test_a_unit_that_is_skipped_does_not_warn() -> None:
    with warnings.catch_warnings(action="error"):
        train(ReentrantUnits)
