"""Own models of rows, images and graphs, each with a habit that cutting must take. More lie in tests/unit/model.

Letters: b rows, t positions, d width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.unit.model.replay_language import D


def features(b: int, t: int) -> dict[str, Tensor]:
    return {"x": torch.randn(b, 5)}


def plain_features(b: int, t: int) -> Tensor:
    return torch.randn(b, 5)


def odd_features(b: int, t: int) -> dict[str, Tensor]:
    """Rows of 7 numbers: a slice of them begins at any address."""
    return {"x": torch.randn(b, t, 7)}


def rows_of_features(b: int, t: int) -> dict[str, Tensor]:
    return {"x": torch.randn(b, t, 5)}


def wide_rows(b: int, t: int) -> dict[str, Tensor]:
    return {"x": torch.randn(b, t, D)}


def features_and_mode(b: int, t: int) -> dict[str, Any]:
    return {"x": torch.randn(b + 1, t, 5), "mode": "gelu"}


def user_and_item(b: int, t: int) -> dict[str, Tensor]:
    """One argument, which is a dict."""
    return {"user": torch.randn(b, 5), "item": torch.randn(b, 3)}


def images(b: int, t: int) -> dict[str, Tensor]:
    return {"x": torch.randn(b, 3, 8, 8)}


def graphs(b: int, t: int) -> dict[str, Tensor]:
    """A cycle of 5 nodes in each row: the edges are integers."""
    edges = torch.stack([torch.arange(5), torch.arange(5).roll(1)])
    return {"nodes": torch.randn(b, 5, 4), "edges": edges.repeat(b, 1, 1)}


def sequential() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(5, D)]
    for _ in range(3):
        layers += [nn.ReLU(inplace=True), nn.Linear(D, D), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(D, 3))


class GroupNormed(nn.Module):
    """Channels last from the first operation on: memory that is not contiguous crosses every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.h = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1)) for _ in range(4)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x.contiguous(memory_format=torch.channels_last))
        for block in self.h:
            h = h + block(h)
        result: Tensor = self.head(h.mean((2, 3)))
        return result


class Dense(nn.Module):
    """Every block sees what all earlier ones made."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.h = nn.ModuleList(nn.Conv2d(4 * (index + 1), 4, 3, padding=1) for index in range(4))
        self.norm = nn.BatchNorm2d(20, momentum=None)
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = [self.stem(x)]
        for block in self.h:
            made.append(F.leaky_relu(block(torch.cat(made, 1))))
        h = self.norm(torch.cat(made, 1))
        result: Tensor = self.head(F.adaptive_max_pool2d(h, 1).flatten(1))
        return result


class Split(nn.Module):
    """Gives views of one tensor, an empty one, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 21)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.linear(x)
        return (*h.split(7, -1), h[:, :0, :7], h[:, -1], h * 2)


class Views(nn.Module):
    """Slices that begin and end anywhere, transposed and expanded ones, and empty ones, between units."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Split() for _ in range(4))
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            a, b, c, nothing, last, _ = block(x)
            mixed = F.gelu(a) + (b.transpose(1, 2) @ c).sum(1, keepdim=True)
            x = torch.cat([nothing, mixed], 1) + last[:, None, :7].expand_as(a)
        result: Tensor = self.head(x[:, 1:])
        return result


class Frozen(nn.Module):
    """The first half does not learn, one block in the middle has no gradient to give, and one bias is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, D)
        self.h = nn.ModuleList(nn.Linear(D, D) for _ in range(6))
        self.head = nn.Linear(D, 3)
        for each in (self.stem, *self.h[:2], self.h[4]):
            each.requires_grad_(False)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        with torch.no_grad():
            h = torch.relu(self.h[0](h))
        for layer in self.h[1:]:
            h = torch.relu(layer(h)) + h
        result: Tensor = self.head(h)
        return result


@dataclass
class State:
    """Crosses every cut; `history` grows."""

    hidden: Tensor
    history: list[Tensor]
    step: int = 0


class Stepping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, state: State) -> State:
        hidden = torch.tanh(self.linear(state.hidden)) / (1 + state.step)
        return State(hidden, [*state.history, hidden.sum(-1)], state.step + 1)


class Stateful(nn.Module):
    """A dataclass between units."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, D)
        self.h = nn.ModuleList(Stepping() for _ in range(4))
        self.head = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        state = State(self.stem(x), [])
        for block in self.h:
            state = block(state)
        return {"out": self.head(state.hidden), "history": torch.stack(state.history)}


class Graph(nn.Module):
    """Integers from the inputs steer gathers and scatters in every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, D)
        self.h = nn.ModuleList(nn.Linear(2 * D, D) for _ in range(4))
        self.head = nn.Bilinear(D, D, 2)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.stem(nodes)
        source, target = (each.unsqueeze(-1).expand(-1, -1, D) for each in edges.unbind(1))
        for layer in self.h:
            messages = layer(torch.cat([h.gather(1, source), h.gather(1, target)], -1))
            h = h.scatter_add(1, target, torch.relu(messages))
        pooled = h.amax(1)
        result: Tensor = self.head(pooled, h.mean(1))
        return result


class Rounded(torch.autograd.Function):
    """Straight through: forward rounds, backward does not see it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Rounding(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Rounded.apply(x)  # type: ignore[no-untyped-call]


class Quantized(nn.Module):
    """An autograd.Function in a unit, and a network whose weights another one makes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, D)
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(D, D), Rounding()) for _ in range(3))
        self.maker = nn.Linear(D, D * 3)

    def forward(self, x: Tensor) -> Tensor:
        first = h = self.stem(x)
        for block in self.h:
            h = block(h)
        return torch.bmm(h.unsqueeze(1), self.maker(first).view(-1, D, 3)).squeeze(1)


class Siamese(nn.Module):
    """One tower for two inputs: it is called again after the other units."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        one, other = x, x.flip(0)
        for layer in self.tower:
            one = torch.tanh(layer(one))
        for layer in self.tower:
            other = torch.tanh(layer(other))
        return one * other
