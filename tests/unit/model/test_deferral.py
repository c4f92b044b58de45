"""Split backwards have the bits of whole ones, and W really computes what I has left."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from pipesvc.model.deferral import Deferral, Late
from tests.unit.model.deferral_models import SPLIT, WHOLE, D, Of, sequence

NUM_STEPS = 3
NUM_MICRO_BATCHES = 4
# I and W of a step: each W at once, all of them at the end, two late.
ORDERS = {
    "at once": "I0 W0 I1 W1 I2 W2 I3 W3",
    "at the end": "I0 I1 I2 I3 W0 W1 W2 W3",
    "late": "I0 I1 W0 I2 W1 I3 W2 W3",
}
SHAPES = {"2-D": (3, D), "3-D": (2, 3, D), "4-D": (2, 3, 2, D)}


def micro_batches(shape: Sequence[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(*shape, generator=generator) for _ in range(NUM_MICRO_BATCHES)]


class Trainer:
    """A stage in small: forwards, backwards by their text, and an update."""

    def __init__(self, build: Callable[[], nn.Module], *, splits: bool, dtype: torch.dtype | None = None) -> None:
        torch.manual_seed(1)
        self.model = build()
        self.deferral = Deferral(self.model.modules() if splits else ())
        self._optimizer = torch.optim.SGD([each for each in self.model.parameters() if each.requires_grad], lr=0.1)
        self._dtype = dtype
        self.outputs: dict[int, Tensor] = {}
        self.late: dict[int, Late] = {}

    def forward(self, index: int, x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", self._dtype or torch.bfloat16, enabled=self._dtype is not None):
            self.outputs[index] = self.model(leaf)
        return leaf

    def run(self, order: str, inputs: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """A step: the gradients of inputs and parameters."""
        leaves = [self.forward(index, x) for index, x in enumerate(inputs)]
        for action in order.split():
            self.act(action)
        found = {name: each.grad for name, each in self.model.named_parameters() if each.grad is not None}
        self.update()
        return [each.grad for each in leaves if each.grad is not None], found

    def act(self, action: str) -> None:
        kind, index = action[0], int(action[1:])
        if kind == "W":
            self.late.pop(index).accumulate()
            return
        with self.deferral.collecting() as self.late[index]:
            self.outputs.pop(index).float().square().sum().backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.deferral.settle()


def assert_equal_runs(
    build: Callable[[], nn.Module], shape: Sequence[int], order: str, dtype: torch.dtype | None = None
) -> None:
    inputs = micro_batches(shape)
    whole, split = (Trainer(build, splits=splits, dtype=dtype) for splits in (False, True))
    for step in range(NUM_STEPS):
        plain, found = whole.run(ORDERS["at once"], inputs), split.run(order, inputs)
        assert len(plain[0]) == len(inputs)
        for index, (one, other) in enumerate(zip(plain[0], found[0], strict=True)):
            assert torch.equal(one, other), (step, index)
        assert plain[1].keys() == found[1].keys() != set()
        differing = [name for name, grad in plain[1].items() if not torch.equal(grad, found[1][name])]
        assert differing == [], step


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", ["2-D", "3-D"])
@pytest.mark.parametrize("name", [*SPLIT, *WHOLE])
def test_n04_split_backwards_have_the_bits_of_whole_ones(name: str, shape: str, order: str) -> None:
    """`power` is x @ w @ w."""
    assert_equal_runs({**SPLIT, **WHOLE}[name], SHAPES[shape], ORDERS[order])


@pytest.mark.parametrize("shape", ["2-D", "3-D"])
@pytest.mark.parametrize("name", [*SPLIT, "functional", "reentrant", "attention"])
def test_under_autocast_too(name: str, shape: str) -> None:
    assert_equal_runs({**SPLIT, **WHOLE}[name], SHAPES[shape], ORDERS["late"], torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SPLIT)
def test_w_computes_what_i_has_left(name: str, shape: str) -> None:
    """So none of these has fallen back to a whole backward."""
    trainer = Trainer(SPLIT[name], splits=True)
    inputs = micro_batches(SHAPES[shape])
    trainer.run(ORDERS["late"], inputs)
    trainer.forward(0, inputs[0])
    trainer.act("I0")
    deferred = [
        parameter
        for module in trainer.model.modules()
        if "forward" in module.__dict__
        for parameter in module._parameters.values()
        if parameter is not None and parameter.requires_grad
    ]
    assert deferred
    assert all(parameter.grad is None for parameter in deferred)
    assert len(trainer.late[0]) > 0
    trainer.act("W0")
    assert all(parameter.grad is not None for parameter in deferred)


@pytest.mark.parametrize("name", ["functional", "embedding", "power", "hooked", "normed", "subclass"])
def test_what_has_more_gradients_than_its_module_knows_stays_in_i(name: str) -> None:
    trainer = Trainer(WHOLE[name], splits=True)
    inputs = micro_batches(SHAPES["3-D"])
    trainer.run(ORDERS["late"], inputs)
    trainer.forward(0, inputs[0])
    trainer.act("I0")
    left = {name for name, parameter in trainer.model.named_parameters() if parameter.grad is None}
    assert left <= {"b.weight", "b.bias"}
    trainer.act("W0")


def test_without_a_split_nothing_is_patched() -> None:
    trainer = Trainer(sequence, splits=False)
    assert not any("forward" in module.__dict__ for module in trainer.model.modules())


class Box:
    """What autograd keeps in the place of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_i_frees_the_graph_and_keeps_what_w_needs() -> None:
    trainer = Trainer(lambda: nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)), splits=True)
    inputs = micro_batches(SHAPES["2-D"])
    trainer.run(ORDERS["late"], inputs)
    boxes: list[weakref.ref[Box]] = []

    def pack(tensor: Tensor) -> Box:
        box = Box(tensor)
        boxes.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        trainer.forward(0, inputs[0])
    assert sum(box() is not None for box in boxes) == 5  # inputs and weights of the Linears, GELU's input
    trainer.act("I0")
    gc.collect()
    assert not any(box() is not None for box in boxes)
    assert len(trainer.late[0]) == 2
    trainer.act("W0")
    assert len(trainer.late) == 0


def test_a_weight_that_gets_other_gradients_later_is_right_and_then_whole() -> None:
    """The first step could not show it: to rounding in that step, and to the bit afterwards."""
    is_used = False

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h: Tensor = m.a(x)  # type: ignore[operator]
        return nn.functional.linear(h, m.a.weight) if is_used else h  # type: ignore[arg-type, union-attr]

    inputs = micro_batches(SHAPES["2-D"])
    whole, split = (Trainer(lambda: Of(forward, a=nn.Linear(D, D)), splits=splits) for splits in (False, True))
    for step in range(4):
        is_used = step > 0
        plain, found = whole.run(ORDERS["at once"], inputs)[1], split.run(ORDERS["late"], inputs)[1]
        for name, grad in plain.items():
            if step == 1:
                assert torch.allclose(grad, found[name], rtol=1e-5)
                found[name].copy_(grad)
        if step == 1:
            split.model.load_state_dict(whole.model.state_dict())
            continue
        assert all(torch.equal(grad, found[name]) for name, grad in plain.items()), step


def test_weights_that_are_kept_stay_in_i() -> None:
    model = nn.Linear(D, D)
    Deferral([model], list(model.parameters())[:1])
    assert "forward" not in model.__dict__
