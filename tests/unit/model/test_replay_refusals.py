"""A forward that cannot be cut is refused by name, with its line and the way out, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.errors import PipesvcError
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_language import D
from tests.unit.model.replay_refusal import Three, flow_of, line_of, refusal_of


def test_the_value_of_an_activation_is_refused_with_its_line() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        if h.mean().item() > 0:
            h = self.b(h)
        return self.c(h)

    text = refusal_of(forward)
    assert "`.item()`" in text
    assert line_of(forward, 2) in text
    assert "unit 'a'" in text
    assert "pipeline=False" in text


@pytest.mark.parametrize(
    "read",
    [
        lambda h: h[h > 0],
        lambda h: h.tolist(),
        lambda h: bool((h > 0).all()),
        lambda h: int(h.sum()),
        lambda h: h.nonzero(),
        lambda h: h.detach().numpy(),
    ],
    ids=["mask index", "tolist", "bool", "int", "nonzero", "numpy"],
)
def test_every_way_to_read_a_value_is_refused(read: Callable[[Tensor], Any]) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        read(h)
        return self.b(h)

    assert "reads the value of a tensor" in refusal_of(forward)


def test_a_value_read_inside_a_unit_is_refused_with_its_line() -> None:
    class Reader(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum().item() > 0 else x

    class Model(Three):
        def __init__(self) -> None:
            super().__init__()
            self.reader = Reader(D, D)

        def forward(self, x: Tensor) -> Any:
            return self.b(self.reader(self.a(x)))

    with pytest.raises(PipesvcError, match="unit 'reader' cannot be planned on shapes alone") as caught:
        record(build_module(Model, 0, ()), Inputs((torch.randn(3, D),)))
    assert line_of(Reader.forward, 1) in str(caught.value)


def test_a_unit_may_read_values_of_its_own_constants() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            for rate in torch.linspace(0, 1, 3).tolist():
                x = x + self.linear(x) * rate
            return x + torch.ones(D)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Steps(), Steps()

        def forward(self, x: Tensor) -> Any:
            return self.b(self.a(x))

    flow = record(build_module(Model, 0, ()), Inputs((torch.randn(3, D),)))
    assert [unit.name for unit in flow.units] == ["a", "b"]


def test_flows_that_differ_between_sizes_are_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        if x.shape[0] > 3:
            h = h * 2
        return self.b(h)

    text = refusal_of(forward)
    assert "does not do the same for inputs of two sizes" in text
    assert "after 'a'" in text


def test_other_units_for_another_size_are_refused_by_name() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        return self.b(h) if x.shape[0] > 3 else self.c(h)

    text = refusal_of(forward)
    assert "'b'" in text
    assert "'c'" in text


def test_a_cache_is_refused_by_name() -> None:
    class KeyValueCache:
        def __init__(self) -> None:
            self.layers: list[Tensor] = []

    class Caching(nn.Linear):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Any:
            h = super().forward(x)
            if cache is None:
                return h, KeyValueCache()
            cache.layers.append(h)
            return h

    class Model(nn.Module):
        is_given = False

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Caching(D, D), Caching(D, D)

        def forward(self, x: Tensor) -> Tensor:
            if self.is_given:
                cache = KeyValueCache()
                return self.b(self.a(x, cache), cache)  # type: ignore[no-any-return]
            return self.b(self.a(x)[0])[0]  # type: ignore[no-any-return]

    model = build_module(Model, 0, ())
    with pytest.raises(PipesvcError, match=r"unit 'a' returns a KeyValueCache object.*use_cache=False"):
        record(model, Inputs((torch.randn(3, D),)))
    model.is_given = True  # type: ignore[assignment]
    with pytest.raises(PipesvcError, match="unit 'a' is given a KeyValueCache object"):
        record(model, Inputs((torch.randn(3, D),)))


def test_a_write_through_a_view_of_an_earlier_tensor_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        view = h.view(-1)
        g = self.b(h)
        view.add_(1)
        return self.c(g) + h

    text = refusal_of(forward)
    assert "through a view" in text
    assert line_of(forward, 5) in text


def test_a_write_into_a_tensor_made_without_a_unit_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        out = torch.zeros(len(h), D)
        out[:] = h
        return self.b(out)

    text = refusal_of(forward)
    assert line_of(forward, 3) in text
    assert "h.new_zeros" in text


def test_a_tensor_kept_from_an_earlier_call_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        h = self.a(x)
        kept = getattr(self, "kept", None)
        self.kept = torch.empty(3, D, device="meta") if kept is None else kept
        return self.b(h) + self.kept

    assert "kept from elsewhere" in refusal_of(forward)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def test_an_autograd_function_between_units_is_refused() -> None:
    double: Any = Double
    text = refusal_of(lambda self, x: self.b(double.apply(self.a(x))))
    assert "calls an autograd.Function between two units" in text


def test_an_error_of_the_user_stays_the_users() -> None:
    with pytest.raises(RuntimeError, match=r"reduction dim|cannot be multiplied"):
        flow_of(lambda self, x: self.b(self.a(x)[:, :3]))
