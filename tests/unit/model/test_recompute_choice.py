"""Which modules are recomputed, what is kept of them, and what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.core.flow import check_ends
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model import recompute
from pipesvc.model.calling import arguments_of
from pipesvc.model.recompute import Recompute
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.replay.units import units_of
from pipesvc.model.skeleton import build_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(torch.exp(torch.sin(self.a(x)))) + x
        return result


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Tower(), Tower(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.second(self.first(x)))
        return result


def changed(asked: Recompute) -> list[str]:
    model = Net()
    recompute.apply(units_of(model), asked)
    return [name for name, module in model.named_modules() if "forward" in module.__dict__]


BLOCKS = [f"{tower}.blocks.{index}" for tower in ("first", "second") for index in range(3)]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (Recompute(), []),
        (Recompute(is_all=True), [*BLOCKS, "head"]),
        (Recompute(patterns=("*",)), [*BLOCKS, "head"]),
        (Recompute(patterns=("first.blocks.*",)), BLOCKS[:3]),
        (Recompute(patterns=("second",)), BLOCKS[3:]),
        (Recompute(patterns=("*.0.b", "head")), ["first.blocks.0.b", "second.blocks.0.b", "head"]),
        (
            Recompute(patterns=("first.blocks.[12]", "*.a")),
            ["first.blocks.0.a", *BLOCKS[1:3], *(f"{each}.a" for each in BLOCKS[3:])],
        ),
    ],
)
def test_the_outermost_of_the_modules_that_match(asked: Recompute, names: list[str]) -> None:
    assert sorted(changed(asked)) == sorted(names)


def test_a_pattern_that_matches_nothing_is_refused_with_what_is_near() -> None:
    names = [name for name, _ in Net().named_modules()]
    recompute.refuse_unmatched(names, Recompute(patterns=("first.*", "head")))
    with pytest.raises(PipesvcError, match=r"recompute has 'frist.blocks.0', which is the name of no module") as caught:
        recompute.refuse_unmatched(names, Recompute(patterns=("head", "frist.blocks.0")))
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert "'first.blocks.0'" in caught.value.details.advice


def test_a_module_that_is_recomputed_as_one_is_not_cut() -> None:
    model = build_module(Net, 0, ())
    flow = record(model, Inputs(*arguments_of(model.forward, torch.ones(2, 4))))
    (found,) = recompute.joined(model, flow, Recompute(patterns=("second", "first.*", "head")))
    assert (found.first, found.last) == (3, 5)
    assert recompute.joined(model, flow, Recompute(is_all=True)) == []
    kept = replace(flow, joined=(*flow.joined, found))
    check_ends(kept, (2, 7))
    with pytest.raises(PipesvcError, match="both are inside 'second', which recompute names") as caught:
        check_ends(kept, (4, 7))
    assert "'second.*'" in caught.value.details.advice


class Box:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def num_kept(asked: Recompute) -> int:
    """Tensors that autograd keeps of a forward."""
    block, boxes = Block(), list[weakref.ref[Box]]()
    recompute.apply({"block": block}, asked)

    def pack(tensor: Tensor) -> Box:
        box = Box(tensor)
        boxes.append(weakref.ref(box))
        return box

    for _ in range(2):  # the first call keeps a copy of its input until it is over
        boxes.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
            output = block(torch.randn(3, 4, requires_grad=True))
        gc.collect()
    kept = sum(box() is not None for box in boxes)
    output.sum().backward()
    return kept


def test_activations_are_not_kept() -> None:
    assert num_kept(Recompute()) >= 5
    assert num_kept(Recompute(is_all=True)) == 0


class Moody(nn.Module):
    writes = False

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x.add_(1) if self.writes else x + 1)


def test_a_module_that_begins_to_write_to_its_input_is_refused() -> None:
    moody = Moody()
    recompute.apply({"moody": moody}, Recompute(is_all=True))
    moody(torch.ones(2, requires_grad=True) * 1)
    moody.writes = True
    with pytest.raises(PipesvcError, match="Moody wrote to its input in place") as caught:
        moody(torch.ones(2, requires_grad=True) * 1)
    assert caught.value.code is ErrorCode.STAGE_FAILED


def test_without_gradients_a_forward_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block()
    recompute.apply({"block": block}, Recompute(is_all=True))
    calls: list[object] = []

    def checkpoint(run: Callable[..., Any], *args: Any, **options: Any) -> Any:
        calls.append(run)
        return run(*args)

    monkeypatch.setattr(recompute, "checkpoint", checkpoint)
    x = torch.ones(3, 4)
    with torch.no_grad():
        assert torch.equal(block(x), Block.forward(block, x))
    assert calls == []
    block(x)
    assert len(calls) == 1
