"""What a run leaves behind, and what it says when forward does something else than was planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.core.flow import parameters_of
from pipesvc.errors import PipesvcError
from pipesvc.model.replay import shapes
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.replay.run import StageReplay
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_language import D, TiedParameter
from tests.unit.model.replay_pipeline import CPU, SEED, Pipeline, plain
from tests.unit.model.replay_zoo import ZOO, UNet, loss_of
from tests.unit.model.test_replay_models import OTHERS, assert_same, even_ends, flow_of


def stage_of(
    build: Callable[[], nn.Module], inputs: Inputs, ends: tuple[int, ...], stage: int, other: Inputs | None = None
) -> StageReplay:
    flow = record(build_module(build, SEED, ()), inputs, other)
    return StageReplay(build_module(build, SEED, parameters_of(flow, ends, stage)), flow, ends, stage, CPU)


def test_several_stages_of_one_model_object() -> None:
    """A worker that holds two stages may hold them in one model."""
    case = ZOO["unet"]
    flow = flow_of(case)
    torch.manual_seed(1)
    batches = [case.inputs(*size) for size in OTHERS]
    ends = even_ends(flow, 3)
    pipeline = Pipeline(case.build, flow, ends)
    names = {name for stage in (0, 2) for name in parameters_of(flow, ends, stage)}
    both = build_module(case.build, SEED, names)
    pipeline.stages[0], pipeline.stages[2] = (StageReplay(both, flow, ends, stage, CPU) for stage in (0, 2))
    pipeline.models = [both, pipeline.models[1]]
    assert_same(pipeline.step(batches, loss_of), plain(case.build, batches, loss_of))


@pytest.mark.parametrize("schedule", ["GPipe", "naive"])
def test_every_schedule_gives_the_same_bits(schedule: str) -> None:
    case = ZOO["encoder-decoder"]
    flow = flow_of(case)
    torch.manual_seed(1)
    batches = [case.inputs(*size) for size in OTHERS]
    found = Pipeline(case.build, flow, even_ends(flow, 3)).step(batches, loss_of, schedule)
    assert_same(found, plain(case.build, batches, loss_of))


def test_only_the_tensors_of_the_plan_are_sent() -> None:
    case = ZOO["unet"]
    flow = flow_of(case)
    pipeline = Pipeline(case.build, flow, even_ends(flow, 2))
    pipeline.step([case.inputs(2, 3)], loss_of)
    assert pipeline.num_values == 2  # the longer skip, and what was made of the shorter one


def test_the_model_is_as_the_user_made_it_between_runs() -> None:
    case = ZOO["unet"]
    inputs = case.inputs(2, 2)
    stage = stage_of(UNet, inputs, (2, 6), 0)
    model = stage._model
    own = model.down1.forward = lambda x: UNet().down1(x)  # type: ignore[union-attr]
    stage.forward(inputs, {})
    assert model.down1.__dict__["forward"] is own
    assert "forward" not in model.down2.__dict__


def test_a_skipped_block_is_run_on_shapes_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ZOO["tied parameter"]
    inputs, longer = case.inputs(2, 3), case.inputs(2, 4)
    stage = stage_of(TiedParameter, inputs, (6, 9), 1)
    (key,) = stage.part.receives[0]
    calls: list[str] = []
    plain_run = shapes.run_on_shapes

    def counted(name: str, *rest: Any) -> Any:
        calls.append(name)
        return plain_run(name, *rest)

    monkeypatch.setattr(shapes, "run_on_shapes", counted)
    for each in (inputs, longer, inputs, longer):
        stage.forward(each, {key: torch.randn(*each.args[0].shape, D)})
    assert sorted(calls) == sorted(["wte", "wpe", "drop", "h.0", "h.1", "h.2"] * 2)


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_MOST_KEPT", 3)
    memo = shapes.Memo()
    made = []

    def answer(number: int) -> shapes.Answer:
        def make() -> shapes.Answer:
            made.append(number)
            return shapes.Answer(None, ())

        return memo.get(("unit", number), make)

    for number in (0, 1, 2, 0, 3, 0, 1):
        answer(number)
    assert len(memo) == 3
    assert made == [0, 1, 2, 3, 1]  # 1 was the least recently used when 3 came


def test_an_object_among_the_arguments_is_never_remembered() -> None:
    unit = nn.Linear(D, D)
    assert shapes.signature_of("a", unit, (torch.randn(2, D), object()), {}) is None
    one, other = (shapes.signature_of("a", unit, (torch.randn(2, D), value), {}) for value in (1, True))
    assert one != other
    hash(one)


class Fork(nn.Module):
    """Does something else for inputs of more than ten rows, which planning does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        if len(x) > 10:
            h = h * 2
        return self.c(self.b(h))


def test_n15_another_way_through_forward_is_an_error_on_both_sides_and_never_wrong() -> None:
    inputs, many = Inputs((torch.randn(2, D),)), Inputs((torch.randn(11, D),))
    first = stage_of(Fork, inputs, (1, 3), 0)
    second = stage_of(Fork, inputs, (1, 3), 1)
    (key,) = first.forward(inputs, {}).values[1]
    first.forward(many, {})  # still makes what was planned
    with pytest.raises(PipesvcError, match="an earlier stage that was not sent"):
        second.forward(many, {key: torch.randn(11, D)})


class Leaves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        if len(x) > 10:
            return h
        return self.c(self.b(h * 1))


def test_forward_that_ends_early_is_an_error() -> None:
    first = stage_of(Leaves, Inputs((torch.randn(2, D),)), (1, 3), 0)
    with pytest.raises(PipesvcError, match="forward ended in stage 0 without calling a unit of a later stage"):
        first.forward(Inputs((torch.randn(11, D),)), {})


class Asks(nn.Module):
    """Asks a computed tensor where and what it is, and makes others beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(D, D) for _ in range(3))
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Any:
        h = self.b(self.a(x))
        self.seen = [
            h.device,
            h.is_meta,
            h.is_cpu,
            h.requires_grad,
            h.dtype,
            h.shape,
            h.dim(),
            len(h),
            self.a.weight.device,
        ]
        bias = torch.arange(h.shape[-1], device=h.device, dtype=h.dtype)
        return self.c(h + bias.to(h))


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stand_in_answers_as_the_tensor_would(stage: int) -> None:
    inputs = Inputs((torch.randn(2, D),))
    replay = stage_of(Asks, inputs, (2, 3), stage)
    received = {key: torch.randn(2, D) for keys in replay.part.receives.values() for key in keys}
    replay.forward(inputs, received)
    expected = [CPU, False, True, True, torch.float32, torch.Size([2, D]), 2, 2, CPU]
    assert replay._model.seen == expected


def test_autocast_around_forward_has_the_bits_of_one_process() -> None:
    case = ZOO["tied parameter"]
    flow = flow_of(case)
    torch.manual_seed(1)
    batches = [case.inputs(*size) for size in OTHERS]
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(case.build, batches, loss_of)
        found = Pipeline(case.build, flow, even_ends(flow, 3)).step(batches, loss_of)
    assert_same(found, expected)


def test_without_gradients_nothing_is_kept_for_backward() -> None:
    inputs = ZOO["unet"].inputs(2, 2)
    stage = stage_of(UNet, inputs, (2, 6), 0)
    with torch.no_grad():
        values = stage.forward(inputs, {}).values[1]
    assert not any(tensor.requires_grad for tensor in values.values())
    assert len(values) == 3
    assert all(tensor.requires_grad for tensor in stage.forward(inputs, {}).values[1].values())
