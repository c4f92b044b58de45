"""Where a model cannot be cut, and what planning leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipesvc.core.flow import check_ends
from pipesvc.errors import PipesvcError
from pipesvc.model.marks import device_guard
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_language import Block, D
from tests.unit.model.replay_refusal import flow_of, line_of, refusal_of
from tests.unit.model.replay_zoo import Convolutions, Recurrent, Towers, UNet, images


def test_a_guard_that_goes_back_is_refused_with_its_line() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with device_guard("cpu"):
            x = self.a(x)
        with device_guard("gpu:0"):
            x = self.b(x)
        with device_guard("cpu"):
            return self.c(x)  # type: ignore[no-any-return]

    text = refusal_of(forward)
    assert "device_guard('cpu')" in text
    assert "after device_guard('gpu:0')" in text
    assert line_of(forward, 5) in text


def test_a_guard_inside_another_must_not_return_to_it() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with device_guard("cpu"):
            x = self.a(x)
            with device_guard("gpu:0"):
                x = self.b(x)
            return self.c(x)  # type: ignore[no-any-return]

    assert "device_guard('cpu') at" in refusal_of(forward)


def test_a_forward_without_units_is_refused() -> None:
    assert "calls no module of the model" in refusal_of(lambda self, x: x + self.a.weight[0])


def test_planning_leaves_generators_and_modules_as_they_were() -> None:
    inputs = images(2, 1)
    before = torch.get_rng_state()
    for build in (Towers, UNet, lambda: Block(0.5), Recurrent, lambda: Convolutions(3, 4)):
        model = build_module(build, 0, ())
        assert all(each.is_meta for each in [*model.parameters(), *model.buffers()])
    model = build_module(UNet, 0, ())
    record(model, inputs)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any("forward" in each.__dict__ for each in model.modules())


def test_a_cut_that_does_not_exist_names_the_nearest() -> None:
    model = build_module(UNet, 0, ())
    with pytest.raises(PipesvcError, match="cut 'down3' does not exist") as caught:
        record(model, images(2, 1), cuts=["down3"])
    assert "'down1'" in str(caught.value)
    with pytest.raises(PipesvcError, match=r"Nearest: 'down1\.norm'"):
        record(model, images(2, 1), cuts=["norm"])


def test_a_cut_that_is_never_called_is_refused() -> None:
    with pytest.raises(PipesvcError, match="cut 'c' was never called in forward"):
        flow_of(lambda self, x: self.b(self.a(x)), ["c"])


def test_a_cut_at_a_list_names_its_first_entry() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)])

        def forward(self, x: Tensor) -> Any:
            return self.h[1](self.h[0](x))

    with pytest.raises(PipesvcError, match=r"Name an entry of it, such as 'h\.0'"):
        record(build_module(Listed, 0, ()), Inputs((torch.randn(3, D),)), cuts=["h"])


def test_cuts_out_of_program_order_are_refused_with_the_line() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.c(self.a(x))
        return self.b(h)

    with pytest.raises(PipesvcError, match="'c' runs before 'b'") as caught:
        flow_of(forward, ["b", "c"])
    assert line_of(forward, 1) in str(caught.value)


def test_a_cut_inside_a_checkpointed_function_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        return checkpoint(lambda y: self.c(self.b(y)), h, use_reentrant=False)  # type: ignore[no-any-return]

    flow = flow_of(forward)
    check_ends(flow, (1, 3))
    with pytest.raises(PipesvcError, match=r"units 'b' and 'c' .* a checkpointed function calls both") as caught:
        check_ends(flow, (2, 3))
    assert f"calls both, {line_of(forward, 2)} (`return checkpoint(" in str(caught.value)


def test_a_reentrant_checkpoint_around_units_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.c(checkpoint(self.b, self.a(x), use_reentrant=True))  # type: ignore[no-any-return]

    assert "Use use_reentrant=False" in refusal_of(forward)


def test_a_second_call_shares_parameters() -> None:
    flow = flow_of(lambda self, x: self.a(self.b(self.a(x))))
    assert flow.parameters["a.weight"] == (0, 1)
    assert flow.joined == ()


def test_a_second_call_of_what_changes_in_forward_must_stay_in_one_stage() -> None:
    flow = flow_of(lambda self, x: self.c(self.norm(self.b(self.norm(self.a(x))))))
    names = [unit.name for unit in flow.units]
    assert names == ["a", "norm", "b", "c"]
    check_ends(flow, (1, 4))
    check_ends(flow, (3, 4))
    with pytest.raises(PipesvcError, match="'norm' is called in both and has state that changes in forward"):
        check_ends(flow, (2, 4))
