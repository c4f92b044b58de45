"""First weights keyed by name: the same for every partition, as the user fills them in, nothing drawn for others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model import modes, trunc_normal
from pipesvc.model.keyed import KeyedBuild
from pipesvc.model.skeleton import build_layers, build_module, whole
from tests.unit.model.ranges import build_range, inspect_layers
from tests.unit.model.test_model_build import MODELS, Build, _is_same, linears
from tests.unit.model.test_model_module import BUILDS, state_of

SEED = 7


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_every_range_of_a_list_has_the_bits_of_the_whole(build: Build) -> None:
    keyed = KeyedBuild(build)
    expected = whole(keyed, SEED)
    for first in range(len(expected)):
        for end in range(first + 1, len(expected) + 1):
            torch.manual_seed(99)
            built = build_range(keyed, SEED, first, end)
            for (name, mine), (_, found) in zip(expected[first:end], built, strict=True):
                assert _is_same(mine, found), (first, end, name)
                assert not any("_pipesvc" in key for each in found.parameters() for key in vars(each))


@pytest.mark.parametrize("name", BUILDS)
def test_every_part_of_a_module_has_the_bits_of_the_whole(name: str) -> None:
    keyed = KeyedBuild(BUILDS[name])
    ((_, model),) = whole(keyed, SEED)
    expected = state_of(model)
    names = list(expected)
    for owned in (names[:1], names[-1:], names[: len(names) // 2], names[len(names) // 2 :], names[::2], names):
        found = state_of(build_module(keyed, SEED, owned))
        assert [each for each in owned if not torch.equal(found[each], expected[each])] == []
        assert all(value.is_meta for each, value in found.items() if each not in owned)


def test_the_generator_ends_the_same_whatever_is_kept() -> None:
    states = []
    for owned in ([0], [3], [0, 1, 2, 3]):
        build_layers(KeyedBuild(linears), SEED, owned)
        states.append(torch.get_rng_state())
    assert all(torch.equal(each, states[0]) for each in states)


def test_no_number_is_drawn_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that would take hours to draw."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1 << 32, 64) * 0.02)
            self.register_buffer("noise", torch.rand(1 << 32, 64))

        def forward(self, ids: Tensor) -> Tensor:
            return self.weight[ids]

    def table() -> nn.Sequential:
        model = nn.Sequential(nn.Embedding(1 << 32, 64), Table(), nn.Linear(8, 8))
        nn.init.trunc_normal_(model[0].get_parameter("weight"))
        return model

    for module in (modes, trunc_normal):
        monkeypatch.setattr(module, "advance", None)
    assert not build_range(KeyedBuild(table), SEED, 2, 3)[0][1].weight.is_meta
    with pytest.raises(TypeError):
        build_range(table, SEED, 2, 3)


def test_a_name_keeps_its_numbers_when_other_layers_change() -> None:
    def net(width: int) -> nn.ModuleDict:
        return nn.ModuleDict({"first": nn.Linear(width, 5), "last": nn.Linear(5, 6)})

    class Net(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.parts = net(width)

        def forward(self, x: Tensor) -> Tensor:
            return x

    ((_, one),), ((_, other),) = (whole(KeyedBuild(lambda width=width: Net(width)), SEED) for width in (3, 700))  # type: ignore[misc]
    for name in ("parts.last.weight", "parts.last.bias"):
        assert torch.equal(one.get_parameter(name), other.get_parameter(name))


def test_seeds_and_names_give_other_numbers() -> None:
    def equal_layers() -> list[nn.Module]:
        return [nn.Linear(8, 8), nn.Linear(8, 8)]

    first, second = (layer.weight for _, layer in whole(KeyedBuild(equal_layers), 1))
    again, _ = (layer.weight for _, layer in whole(KeyedBuild(equal_layers), 2))
    assert not torch.equal(first, second)  # type: ignore[arg-type]
    assert not torch.equal(first, again)  # type: ignore[arg-type]


def test_what_the_model_function_fills_in_itself_stays() -> None:
    def scaled() -> Any:
        model: Any = nn.Sequential(nn.Linear(100, 400), nn.Embedding(300, 100))
        for layer in model:
            nn.init.normal_(layer.weight, mean=5.0, std=0.01)
        nn.init.trunc_normal_(model[1].weight, std=0.02, a=-0.02, b=0.02)
        return model

    (_, linear), (_, embedding) = whole(KeyedBuild(scaled), SEED)
    weight: Any = linear.weight
    assert math.isclose(weight.mean().item(), 5.0, abs_tol=1e-3)
    assert math.isclose(weight.std().item(), 0.01, rel_tol=0.05)
    assert embedding.get_parameter("weight").detach().abs().max() <= 0.02


def test_a_generator_of_the_user_is_used_and_moved_as_in_the_plain_build() -> None:
    generator = torch.Generator()

    def build() -> Any:
        model: Any = nn.Sequential(nn.Linear(30, 40), nn.Linear(3, 3))
        for layer in model:
            nn.init.uniform_(layer.weight, generator=generator)
        return model

    generator.manual_seed(5)
    plain, state = whole(build, SEED), generator.get_state()
    generator.manual_seed(5)
    ((_, built),) = build_range(KeyedBuild(build), SEED, 1, 2)
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(built.weight, plain[1][1].weight)  # type: ignore[arg-type]


def test_what_cannot_be_built_in_parts_cannot_be_keyed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))
            self.scale = self.weight.abs().max().item()

        def forward(self, x: Tensor) -> Tensor:
            return x

    assert whole(Scaled, SEED)
    for refused in (lambda: whole(KeyedBuild(Scaled), SEED), lambda: inspect_layers(KeyedBuild(Scaled), is_whole=True)):
        with pytest.raises(PipesvcError, match="reads the value of a tensor") as caught:
            refused()
        assert caught.value.code is ErrorCode.BUILD_FAILED
        assert 'leave out init="by_name"' in caught.value.details.advice


class Twice(nn.Module):
    """Fills its weight twice, the second time in place of the first, and keeps a copy of what that was."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(64))
        nn.init.normal_(self.weight)
        self.register_buffer("was", self.weight.detach().clone())
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_a_parameter_that_is_filled_again_gets_other_numbers() -> None:
    [(_, model)] = whole(KeyedBuild(Twice), SEED)
    assert not torch.equal(model.get_parameter("weight"), model.get_buffer("was"))
