"""Which modules are units, and what one recorded run finds out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core.flow import Flow, inputs_of, shared_parameters, transfers
from pipesvc.core.plan import StrategySettings
from pipesvc.core.stages import cut
from pipesvc.model.marks import device_guard
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.replay.units import units_of
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_language import D, Masked, TiedParameter
from tests.unit.model.replay_zoo import ZOO, Guarded, ResNet, UNet, rows


def flow_of(name: str, cuts: Sequence[str] = ()) -> Flow:
    case = ZOO[name]
    return record(build_module(case.build, 0, ()), case.inputs(2, 3), cuts=cuts)


def names_of(flow: Flow) -> list[str]:
    return [unit.name for unit in flow.units]


def test_the_outermost_list_of_equal_blocks_is_opened() -> None:
    assert list(units_of(TiedParameter())) == ["wte", "wpe", "drop", "h.0", "h.1", "h.2", "h.3", "ln_f", "lm_head"]
    assert [name for name in units_of(ResNet()) if "layer" in name] == ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]
    assert list(units_of(UNet())) == ["down1", "down2", "mid", "up2", "up1", "out"]


def test_a_model_that_wraps_another_is_opened() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = UNet()

    assert list(units_of(Wrapper()))[:2] == ["model.down1", "model.down2"]


def test_a_cut_opens_what_encloses_it_and_nothing_else() -> None:
    names = list(units_of(TiedParameter(), ["h.1.feed"]))
    assert names == [
        "wte",
        "wpe",
        "drop",
        "h.0",
        "h.1.norm",
        "h.1.attention",
        "h.1.feed",
        "h.2",
        "h.3",
        "ln_f",
        "lm_head",
    ]
    assert list(units_of(ResNet(), ["fc"])) == ["stem", "norm", "layer1", "layer2", "fc"]


def test_a_module_whose_parts_have_different_marks_is_opened() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with device_guard("cpu"):
                self.one = nn.Linear(D, D)
            with device_guard("gpu:0"):
                self.two = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Any:
            return self.two(self.one(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.out = Parts(), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Any:
            return self.out(self.parts(x))

    flow = record(build_module(Model, 0, ()), Inputs((torch.randn(2, D),)))
    assert [(unit.name, unit.mark) for unit in flow.units] == [
        ("parts.one", "cpu"),
        ("parts.two", "gpu:0"),
        ("out", ""),
    ]


def test_units_come_in_the_order_of_their_first_call_with_their_sizes() -> None:
    flow = flow_of("encoder-decoder")
    assert names_of(flow) == ["wte", "encoder.0", "encoder.1", *(f"decoder.{index}" for index in range(4))]
    assert flow.units[0].parameter_bytes == 13 * D * 4
    assert flow.units[0].type == "Embedding"
    assert flow_of("resnet").units[1].buffer_bytes == 4 * 4 + 4 * 4 + 8


def test_a_long_skip_is_one_value_with_its_users() -> None:
    """What follows a unit is its own too, so the joined inputs of up2 and up1 are made behind mid and up2."""
    flow = flow_of("unet")
    skips = [(value.producer, value.users) for value in flow.values if max(value.users) > value.producer + 1]
    assert skips == [(0, (3,))]
    keys = transfers(flow, (1, 2, 3, 6))
    assert {stages: len(each) for stages, each in keys.items()} == {(0, 1): 1, (0, 3): 1, (1, 2): 2, (2, 3): 1}


def test_integers_that_cross_want_no_gradient() -> None:
    flow = flow_of("integer skip")
    (choice,) = [value for value in flow.values if value.dtype == "int64"]
    assert not choice.is_differentiable
    assert (choice.producer, choice.users) == (0, (3,))


def test_tied_weights_are_found_by_use() -> None:
    assert flow_of("tied parameter").parameters["wte.weight"] == (0, 8)
    functional = flow_of("tied functional")
    assert functional.parameters["wte.weight"] == (0, 3)
    assert functional.parameters["position"] == (0,)
    assert shared_parameters(functional, (2, 4)) == {"wte.weight": (0, 1)}


def test_an_integer_input_goes_to_the_stages_that_read_it() -> None:
    flow = flow_of("mask, number")
    ends = (1, 2, 4, 5)
    # Its values decide a branch, so every stage must know them; the ids are for the embedding alone.
    assert [inputs_of(flow, ends, stage) for stage in range(4)] == [
        ("input_ids", "attention_mask"),
        ("attention_mask",),
        ("attention_mask",),
        ("attention_mask",),
    ]
    # So no mask crosses: each stage makes it from its own micro-batch's rows.
    assert all(len(keys) == 1 for keys in transfers(flow, ends).values())


def test_a_mask_that_nobody_branches_on_goes_to_its_users_only() -> None:
    class Late(Masked):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, scale: float = 1.0) -> Any:
            assert attention_mask is not None
            keep = attention_mask[..., None] > 0
            h = self.h[1](self.h[0](self.wte(input_ids)))
            return self.head(h * keep)

    flow = record(build_module(Late, 0, ()), ZOO["mask, number"].inputs(2, 3))
    assert inputs_of(flow, (2, 4), 0) == ("input_ids", "attention_mask")
    assert flow.input_users["attention_mask"] == (-1, 2)
    assert flow.input_users["input_ids"] == (0,)


def test_guards_in_forward_are_marks_of_units() -> None:
    flow = record(build_module(Guarded, 0, ()), rows(2, 3))
    assert [(unit.name, unit.mark) for unit in flow.units] == [
        ('device_guard("cpu")', "cpu"),
        ("e", "cpu"),
        ('device_guard("gpu:0")', "gpu:0"),
        ("h.0", "gpu:0"),
        ("h.1", "gpu:0"),
        ('device_guard("gpu:1")', "gpu:1"),
        ("h.2", "gpu:1"),
        ("h.3", "gpu:1"),
        ("tail.o", ""),
        ('device_guard("cpu:last")', "cpu:last"),
    ]
    cuts = cut(StrategySettings(), flow.units, 1)
    assert [(each.label, each.end_layer) for each in cuts] == [("cpu", 2), ("gpu:0", 5), ("gpu:1", 9), ("cpu:last", 10)]
    # The parameter that only the last guard's operations use lies with them.
    assert flow.parameters["tail.scale"] == (9,)


def test_a_parameter_that_nobody_uses_is_known() -> None:
    class Spare(TiedParameter):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(D, D)

    flow = record(build_module(Spare, 0, ()), ZOO["tied parameter"].inputs(2, 3))
    assert flow.parameters["spare.weight"] == ()
    assert "spare" not in names_of(flow)
