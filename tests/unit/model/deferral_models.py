"""Modules whose backward can be split, and such of which only a part can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

D = 6


class Conv1D(nn.Module):
    """As in transformers: weight is (inputs, outputs)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        size_out = (*x.size()[:-1], self.nf)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.view(size_out)


class Scaled(Conv1D):
    """Looks like it, and is another one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Of(nn.Module):
    """A forward made of a function and its modules."""

    def __init__(self, forward: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self._forward(self, x)
        return found


def _linear(bias: bool = True) -> nn.Linear:
    return nn.Linear(D, D, bias=bias)


def sequence(bias: bool = True) -> nn.Module:
    return nn.Sequential(_linear(bias), nn.ReLU(inplace=True), nn.LayerNorm(D), _linear(bias))


def conv1d() -> nn.Module:
    return nn.Sequential(Conv1D(2 * D, D), nn.GELU(), Conv1D(D, 2 * D))


def thrice() -> nn.Module:
    """One Linear called three times."""
    return Of(lambda m, x: m.a(torch.tanh(m.a(torch.tanh(m.a(x))))), a=_linear())


def transposed() -> nn.Module:
    """Inputs that do not lie row by row in memory."""
    return Of(lambda m, x: m.b(m.a(x.transpose(0, -2)).transpose(0, -2).flip(0)), a=_linear(), b=_linear())


def rowless() -> nn.Module:
    """A Linear on one vector, as in the projection of a learned token."""
    return Of(lambda m, x: m.b(x) + m.a(m.b.bias * 1.0), a=_linear(False), b=_linear())


def tied_linears() -> nn.Module:
    one, other = _linear(), _linear()
    other.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), other)


def frozen() -> nn.Module:
    one, other = _linear(), _linear()
    one.weight.requires_grad_(False)
    other.bias.requires_grad_(False)
    return nn.Sequential(one, nn.Tanh(), other)


def checkpointed(use_reentrant: bool) -> nn.Module:
    inner = nn.Sequential(_linear(), nn.GELU(), _linear())
    return Of(
        lambda m, x: m.b(checkpoint(m.inner, m.a(x), use_reentrant=use_reentrant)),
        a=_linear(),
        inner=inner,
        b=_linear(),
    )


def twice_in_reentrant() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        for _ in range(3):
            h = checkpoint(lambda y: torch.tanh(m.b(y)), h, use_reentrant=True)
        found: Tensor = h
        return found

    return Of(forward, a=_linear(), b=_linear())


SPLIT: dict[str, Callable[[], nn.Module]] = {
    "linear": sequence,
    "without bias": lambda: sequence(False),
    "conv1d": conv1d,
    "thrice": thrice,
    "transposed": transposed,
    "tied linears": tied_linears,
    "frozen": frozen,
    "checkpoint": lambda: checkpointed(False),
}


class Functional(nn.Module):
    """Its weight is also used without its module, as a tied head does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _linear(), _linear()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(nn.functional.linear(torch.tanh(self.a(x)), self.a.weight))
        return found


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(D, D)
        self.head = nn.Linear(D, D, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.tanh(self.table((x[..., 0] > 0).long()) + x))
        return found


class Power(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, D))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w @ self.w


class Penalty(nn.Module):
    """A gradient of a gradient, within the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _linear(), _linear()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        (slope,) = torch.autograd.grad(h.sum(), x if x.requires_grad else self.a.weight, create_graph=True)
        found: Tensor = self.b(h) + slope.square().mean()
        return found


def hooked() -> nn.Module:
    first, last = _linear(), _linear()
    first.weight.register_hook(lambda g: g * 2)  # type: ignore[no-untyped-call]
    last.bias.register_post_accumulate_grad_hook(lambda p: None)  # type: ignore[no-untyped-call]
    return nn.Sequential(first, nn.ReLU(inplace=True), last)


def normed() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(_linear()), nn.utils.spectral_norm(_linear()))


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "functional": Functional,
    "embedding": Embedded,
    "power": Power,
    "penalty": Penalty,
    "hooked": hooked,
    "normed": normed,
    "subclass": lambda: nn.Sequential(Doubled(D, D), Scaled(D, D)),
    "attention": lambda: nn.TransformerEncoderLayer(D, 2, 2 * D, 0.0, batch_first=True),
    "reentrant": lambda: checkpointed(True),
    "twice in reentrant": twice_in_reentrant,
    "rowless": rowless,
    "lstm": lambda: Of(
        lambda m, x: m.head(m.lstm(x if x.dim() == 3 else x[None])[0]),
        lstm=nn.LSTM(D, D, batch_first=True),
        head=_linear(),
    ),
}
