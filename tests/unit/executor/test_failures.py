"""What goes wrong in user code reaches the user with its type, text, traceback and place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from pipesvc.errors import ErrorCode, PipesvcError
from tests.unit.executor.batches import Batch, batch_of
from tests.unit.executor.network import Cluster, Setup


def make_layers() -> list[nn.Module]:
    return [nn.Linear(3, 4), nn.Linear(4, 2)]


def make_batch(num_rows: int = 8) -> Batch:
    rows = torch.arange(3.0 * num_rows).reshape(num_rows, 3) / 24
    return batch_of(rows, torch.ones(num_rows, 2), num_rows, 2)


class Fails(nn.Module):
    """Raises in forward when it sees a value above the limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, value: Tensor) -> Tensor:
        if value.max().item() > self.limit:
            raise ValueError("boom")
        return value


def failure(setup: Setup, num_good_steps: int = 0, num_rows: int = 8) -> PipesvcError:
    cluster = Cluster(setup, has_labels=True)
    try:
        for step in range(1, num_good_steps + 1):
            cluster.issue(step, make_batch())
        cluster.issue(num_good_steps + 1, make_batch(num_rows))
        with pytest.raises(PipesvcError) as caught:
            cluster.turn_until_idle()
    finally:
        cluster.close()
    return caught.value


def test_f12_exception_in_forward_has_type_text_traceback_and_place() -> None:
    setup = Setup(make_layers=lambda: [nn.Identity(), Fails(0.6), nn.Linear(3, 2)], cuts=(1,), loss=mse_loss)
    details = failure(setup).details
    assert details.code is ErrorCode.STAGE_FAILED
    assert details.exception_type == "ValueError"
    assert details.message == "forward of layer '1' (Fails) on float32 (4, 3): ValueError: boom"
    assert "micro_batches" not in details.advice
    assert (details.where.step, details.where.stage, details.where.micro_batch) == (1, 1, 1)
    assert 'raise ValueError("boom")' in details.traceback
    assert str(Path("executor") / "stage.py") not in details.traceback


@pytest.mark.parametrize("batch_norm", ["micro_batch", "deferred"])
def test_a_micro_batch_of_one_row_that_batch_norm_refuses_is_told_with_the_way_out(batch_norm: str) -> None:
    """A last batch of three rows in two micro-batches."""
    setup = Setup(
        make_layers=lambda: [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)],
        cuts=(1,),
        loss=mse_loss,
        defers_batch_norm=batch_norm == "deferred",
    )
    details = failure(setup, num_good_steps=1, num_rows=3).details
    assert (details.code, details.exception_type) == (ErrorCode.STAGE_FAILED, "ValueError")
    assert details.advice == "Use fewer micro_batches; drop_last=True leaves out a last batch that is short"
    assert (details.where.step, details.where.stage, details.where.micro_batch) == (2, 1, 1)


class Interrupts(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        raise KeyboardInterrupt


def test_keyboard_interrupt_of_a_layer_has_its_place() -> None:
    details = failure(Setup(make_layers=lambda: [nn.Linear(3, 2), Interrupts()], cuts=(1,), loss=mse_loss)).details
    assert (details.code, details.exception_type) == (ErrorCode.STAGE_FAILED, "KeyboardInterrupt")
    assert (details.where.step, details.where.stage) == (1, 1)


def test_wrong_shape_between_stages_shows_both() -> None:
    setup = Setup(make_layers=lambda: [nn.Linear(3, 5), nn.Linear(4, 2)], cuts=(1,), loss=mse_loss)
    details = failure(setup).details
    assert details.message.startswith("forward of layer '1' (Linear) on float32 (4, 5): RuntimeError")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ZeroDivisionError("in backward")


class Backs(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = FailsBackward.apply(value)  # type: ignore[no-untyped-call]
        return result


def test_f12_exception_in_backward() -> None:
    setup = Setup(make_layers=lambda: [nn.Linear(3, 2), Backs(), nn.Linear(2, 2)], cuts=(2,), loss=mse_loss)
    details = failure(setup).details
    assert (details.code, details.exception_type) == (ErrorCode.STAGE_FAILED, "ZeroDivisionError")
    assert details.message == "backward: ZeroDivisionError: in backward"
    assert (details.where.step, details.where.stage, details.where.micro_batch) == (1, 0, 0)


class FailingSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise OverflowError("in update")


def test_f12_exception_in_update() -> None:
    setup = Setup(make_layers=make_layers, cuts=(1,), loss=mse_loss, make_optimizer=FailingSGD)
    details = failure(setup).details
    assert (details.code, details.exception_type) == (ErrorCode.STAGE_FAILED, "OverflowError")
    assert details.message == "update with FailingSGD: OverflowError: in update"
    assert (details.where.step, details.where.stage, details.where.micro_batch) == (1, 1, None)


def failing_loss(output: Tensor, labels: Tensor) -> Tensor:
    raise KeyError("label")


def test_f12_exception_in_the_loss_function() -> None:
    details = failure(Setup(make_layers=make_layers, cuts=(1,), loss=failing_loss)).details
    assert details.message == "the loss function on float32 (4, 2), float32 (4, 2): KeyError: 'label'"


def infinite_loss(output: Tensor, labels: Tensor) -> Tensor:
    return output.sum() * float("inf")


def test_loss_that_is_not_finite_is_refused_when_asked() -> None:
    setup = Setup(make_layers=make_layers, cuts=(1,), loss=infinite_loss, check_finite=True)
    details = failure(setup).details
    assert details.code is ErrorCode.NON_FINITE_LOSS
    assert (details.where.step, details.where.stage, details.where.micro_batch) == (1, 1, 0)


def test_loss_that_is_not_finite_trains_on_when_not_asked() -> None:
    cluster = Cluster(Setup(make_layers=make_layers, cuts=(1,), loss=infinite_loss), has_labels=True)
    losses = cluster.train([make_batch()])
    cluster.close()
    assert not math.isfinite(losses[0])
