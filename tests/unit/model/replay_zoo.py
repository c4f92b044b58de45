"""Small models beside those of language, and the table of all.

Letters: b rows, t positions, d width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pipesvc.model.marks import device_guard
from pipesvc.model.replay.inputs import Inputs
from tests.unit.model.replay_language import (
    D,
    EncoderDecoder,
    Masked,
    Selected,
    States,
    TiedFunctional,
    TiedParameter,
    ids,
)


class Towers(nn.Module):
    """A dict in, a dict out, and the first tower's result used again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(5, D), nn.ReLU(), nn.Linear(D, D))
        self.item = nn.Sequential(nn.Linear(3, D), nn.ReLU(), nn.Linear(D, D))
        self.fuse = nn.Linear(2 * D, D)
        self.out = nn.Linear(D, 4)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        user, item = self.user(batch["user"]), self.item(batch["item"])
        h = torch.relu(self.fuse(torch.cat([user, item], -1)))
        return {"logits": self.out(h), "similarity": (user * item).sum(-1)}


class Convolutions(nn.Module):
    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(ins, outs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outs)
        self.two = nn.Conv2d(outs, outs, 3, padding=1)
        self.side = nn.Conv2d(ins, outs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.norm(self.one(x)))) + self.side(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Convolutions(4, 4), Convolutions(4, 4))
        self.layer2 = nn.Sequential(Convolutions(4, 8), Convolutions(8, 8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class UNet(nn.Module):
    """Two skips, the longer one over every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = Convolutions(3, 4)
        self.down2 = Convolutions(4, 8)
        self.mid = Convolutions(8, 8)
        self.up2 = Convolutions(16, 4)
        self.up1 = Convolutions(8, 4)
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> Any:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.mid(F.max_pool2d(b, 2))
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2), b], 1))
        return self.out(self.up1(torch.cat([F.interpolate(y, scale_factor=2), a], 1)))


class SizesDecide(nn.Module):
    """Control flow on sizes and on the mode; a loop over positions inside a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, D)
        self.cell = Recurrent()
        self.b = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.o = nn.Linear(D, 4)

    def forward(self, x: Tensor) -> Any:
        h = self.cell(self.a(x))
        h = h * 2 if x.shape[0] > 1 else h
        for index, layer in enumerate(self.b):
            if self.training or index != 1:
                h = F.gelu(layer(h)) / h.shape[0]
        return self.o(h)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, 0]
        for index in range(1, x.shape[1]):
            h = torch.tanh(self.step(h)) + x[:, index]
        return h


class Bundle(NamedTuple):
    hidden: Tensor
    num_parts: int


@dataclass
class Output:
    bundle: Bundle
    name: str
    again: Tensor  # the same object as in the bundle
    nothing: None = None


class Parts(nn.Module):
    """Returns a dataclass with a named tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, hs: list[Tensor], mode: str) -> Output:
        act = F.relu if mode == "relu" else F.gelu
        hidden = act(self.linear(sum(hs, torch.zeros(()))))
        return Output(Bundle(hidden, len(hs)), mode, hidden)


class PythonValues(nn.Module):
    """Lists, numbers, strings, None, a dataclass and a named tuple between units; an output that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, D)
        self.b = nn.Linear(D, D)
        self.parts = Parts()
        self.aside = nn.Linear(D, D)
        self.o = nn.Linear(D, 4)

    def forward(self, x: Tensor, mode: str = "relu") -> Tensor:
        hs = [self.a(x)]
        hs.append(self.b(hs[-1]))
        output = self.parts(hs, mode)
        self.aside(hs[0])
        first, second = output.bundle.hidden.unbind(0)[:2]
        h = (first + second) / output.bundle.num_parts + output.again.mean(0)
        return self.o(h) if output.name == mode and output.nothing is None else x


class InPlace(nn.Module):
    """Every stage may begin with an operation in place on what it received, or on a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(D, D) for _ in range(3))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        skip = h * 1.0
        self.act(h)
        h = self.b(h).mul_(0.5)
        h[:, 0] = 0.5
        h = self.c(h)
        skip.add_(1)
        return h.mul_(2) + skip


class IntegerSkip(nn.Module):
    """Integers that a unit computes, used much later."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(5, 4)
        self.a = nn.Linear(5, D)
        self.b = nn.Linear(D, D)
        self.table = nn.Embedding(4, D)

    def forward(self, x: Tensor) -> Any:
        choice = self.route(x).argmax(-1)
        h = self.b(torch.relu(self.a(x)))
        return h + self.table(choice)


class Guarded(nn.Module):
    """Guards in forward, one in a loop, one around operations only, one inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Linear(5, D)
        self.h = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.tail = GuardedTail()

    def forward(self, x: Tensor) -> Any:
        with device_guard("cpu"):
            x = self.e(x)
        for index, layer in enumerate(self.h):
            with device_guard(f"gpu:{index // 2}"):
                x = torch.relu(layer(x))
        return self.tail(x)


class GuardedTail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.o = nn.Linear(D, 4)
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.o(x)
        with device_guard("cpu:last"):
            return torch.tanh(x) * self.scale


class Noisy(nn.Module):
    """Draws between units: from sizes alone, like a tensor, in place, and by dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(5, 5) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.h:
            x = layer(x)
            x = F.dropout(x, 0.3, self.training) + torch.rand(x.shape[-1], device=x.device)
            x = x + torch.randn_like(x) + torch.empty_like(x).bernoulli_(0.5)
        return x


def sequences(b: int, t: int) -> Inputs:
    return Inputs((ids(b, t),))


def rows(b: int, t: int) -> Inputs:
    return Inputs((torch.randn(b, t, 5),))


def images(b: int, t: int) -> Inputs:
    return Inputs((torch.randn(b, 3, 4 * t, 4 * t),))


def masked(b: int, t: int) -> Inputs:
    mask = torch.cat([torch.ones(b, t - 1), torch.zeros(b, 1)], 1).long()
    return Inputs((), {"input_ids": ids(b, t), "attention_mask": mask, "scale": 0.5})


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]


ZOO: dict[str, Case] = {
    "tied parameter": Case(TiedParameter, lambda b, t: Inputs((ids(b, t),), {"labels": ids(b, t)})),
    "tied functional": Case(TiedFunctional, sequences),
    "mask, number": Case(Masked, masked),
    "selected": Case(Selected, lambda b, t: Inputs((ids(b, t), torch.randint(1, t, (b,))))),
    "towers": Case(Towers, lambda b, t: Inputs(({"user": torch.randn(b, 5), "item": torch.randn(b, 3)},))),
    "states": Case(States, sequences),
    "resnet": Case(ResNet, images),
    "unet": Case(UNet, images),
    "encoder-decoder": Case(EncoderDecoder, lambda b, t: Inputs((ids(b, t), ids(b, t + 1)))),
    "sizes decide": Case(SizesDecide, rows),
    "python values": Case(PythonValues, lambda b, t: Inputs((torch.randn(b, t, 5),), {"mode": "gelu"})),
    "in place": Case(InPlace, lambda b, t: Inputs((torch.randn(b, t, D),))),
    "integer skip": Case(IntegerSkip, rows),
    "guarded": Case(Guarded, rows),
}


def loss_of(result: Any) -> Any:
    """Of whatever a model of the zoo returns."""
    if isinstance(result, dict):
        return sum((each.square().mean() for each in result.values()), torch.zeros(()))
    return result if result.dim() == 0 else result.square().mean()
