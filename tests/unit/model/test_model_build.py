"""The truth is the plain build: every contiguous range of every model has its bits, and leaves its generator state."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.core.plan import LayerInfo
from pipesvc.model.skeleton import build_layers, whole
from tests.unit.model.ranges import build_range, inspect_layers

Build = Callable[[], object]
SEED = 7


class Attention(nn.Module):
    """Sets in_proj again after out_proj was made; holds a mask and a parameter made of random values."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.ones(4, 4).triu(1))
        self.position = nn.Parameter(torch.randn(3, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Late(nn.Module):
    """Large values made in every way before they are registered, and one that never is."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        local = nn.Parameter(torch.empty(rows, 1024))
        self.local = local
        nn.init.normal_(local)
        self.scaled = nn.Parameter(torch.randn(rows, 1024) * 0.02)
        self.uniform = nn.Parameter(torch.rand(rows, 1000))
        self.integers = nn.Parameter(torch.randint(5, (rows, 1024)), requires_grad=False)
        self.zeros = nn.Parameter(torch.zeros(rows, 1024))
        self.register_buffer("noise", torch.randn(rows, 1024))
        self.plain = torch.rand(rows, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return x


def linears() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4, bias=False))


def tail_sizes() -> list[nn.Module]:
    """Above and below a block of scratch, with every kind of tail."""
    return [nn.Linear(700, 700), nn.Embedding(1000, 301, padding_idx=3), nn.Linear(700, 333), nn.Linear(1, 65521)]


def transformer() -> list[nn.Module]:
    return [nn.Embedding(30, 8), Attention(), Attention(), nn.Linear(8, 30)]


def images() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.ConvTranspose1d(4, 4, 3))


def recurrent() -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(8, 8), nn.LSTM(8, 8, 2, bidirectional=True), nn.GRU(16, 4)])


def encoder() -> list[nn.Module]:
    """The prototype is copied and is itself no part of the model."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return [nn.Linear(8, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 4)]


def copies() -> nn.ModuleList:
    """The prototype is the first layer."""
    first = Attention()
    return nn.ModuleList([first, *[copy.deepcopy(first) for _ in range(2)], nn.Linear(8, 8)])


def initialised() -> Any:
    model: Any = nn.Sequential(*[nn.Linear(300, 290) for _ in range(4)], nn.Linear(20, 30))
    nn.init.kaiming_normal_(model[0].weight)
    nn.init.orthogonal_(model[1].weight)
    nn.init.kaiming_uniform_(model[2].weight.T)
    nn.init.normal_(model[3].weight.T)
    nn.init.sparse_(model[4].weight, 0.2)
    return model


def initialised_otherwise() -> Any:
    model: Any = nn.Sequential(*[nn.Linear(300, 290) for _ in range(4)], nn.Conv1d(4, 4, 3))
    nn.init.xavier_normal_(model[0].weight)
    nn.init.eye_(model[1].weight)
    nn.init.xavier_uniform_(model[2].weight)
    nn.init.constant_(model[3].weight, 0.5)
    nn.init.dirac_(model[4].weight)
    return model


def truncated() -> Any:
    model: Any = nn.Sequential(nn.Linear(300, 500), nn.Linear(500, 300), nn.Linear(301, 501), nn.Linear(5, 3))
    for layer in model:
        nn.init.trunc_normal_(layer.weight)
    nn.init.trunc_normal_(model[1].weight, std=0.02)
    nn.init.trunc_normal_(model[2].weight, mean=0.5, a=-1.0, b=1.0)
    return model


def initialised_again() -> Any:
    model: Any = nn.Sequential(nn.Linear(300, 400), nn.Embedding(100, 1000), nn.LayerNorm(8), nn.Linear(30, 40))

    def fill(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(0, 0.02)

    return model.apply(fill)


def other_draws() -> Any:
    generator = torch.Generator().manual_seed(3)
    model: Any = nn.Sequential(*[nn.Linear(300, 400) for _ in range(3)])
    for layer in model:
        nn.init.normal_(layer.weight, generator=generator)
        layer.weight.data.exponential_(generator=generator).random_(0, 5).cauchy_()
        layer.weight.data.bernoulli_(0.3)
        layer.weight.data.add_(torch.rand_like(layer.weight))
        layer.bias.data.copy_(torch.randn(400, device=layer.bias.device))
    return model


def changed_after() -> Any:
    model: Any = nn.Sequential(*[nn.Linear(300, 400) for _ in range(4)]).to(torch.bfloat16)
    nn.init.normal_(model[0].weight)
    model[1].weight = nn.Parameter(torch.randn(400, 300))
    model[2].weight.data = torch.randn(400, 300)
    model[3].weight.data.div_(model[3].weight.norm())
    return model


def parametrized() -> nn.Sequential:
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.Linear(8, 8),
    )


def late() -> list[nn.Module]:
    return [Late(300), Late(301)]


MODELS: list[Build] = [
    linears,
    tail_sizes,
    transformer,
    images,
    recurrent,
    encoder,
    copies,
    initialised,
    initialised_otherwise,
    truncated,
    initialised_again,
    other_draws,
    changed_after,
    parametrized,
    late,
]


def _tensors(layer: nn.Module) -> dict[str, Tensor]:
    plain = {name: value for name, value in vars(layer).items() if isinstance(value, Tensor)}
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers()), **plain}


def _is_same(one: nn.Module, other: nn.Module) -> bool:
    expected, found = _tensors(one), _tensors(other)
    return list(expected) == list(found) and all(
        each.dtype == found[name].dtype and torch.equal(each, found[name]) for name, each in expected.items()
    )


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_every_range_has_the_bits_of_the_plain_build(build: Build) -> None:
    plain = whole(build, SEED)
    state = torch.get_rng_state()
    for first in range(len(plain)):
        for end in range(first + 1, len(plain) + 1):
            torch.manual_seed(99)
            built = build_range(build, SEED, first, end)
            assert torch.equal(torch.get_rng_state(), state), (first, end)
            assert [name for name, _ in built] == [name for name, _ in plain[first:end]]
            for (name, expected), (_, found) in zip(plain[first:end], built, strict=True):
                assert _is_same(expected, found), (first, end, name)
                assert not any("_pipesvc" in key for each in found.parameters() for key in vars(each))


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_layers_of_other_stages_have_no_values(build: Build) -> None:
    layers = build_layers(build, SEED, [1])
    for index, (_, layer) in enumerate(layers):
        assert {each.is_meta for each in [*layer.parameters(), *layer.buffers()]} <= {index != 1}


def test_ranges_of_one_worker_need_not_touch() -> None:
    plain, built = whole(linears, SEED), build_layers(linears, SEED, [0, 3])
    assert all(_is_same(plain[index][1], built[index][1]) for index in (0, 3))
    assert all(each.is_meta for each in built[2][1].parameters())


def test_built_layers_train() -> None:
    (_, lstm), _ = build_range(recurrent, SEED, 1, 3)
    output, _ = lstm(torch.randn(5, 2, 8))
    output.sum().backward()
    assert all(each.grad is not None for each in lstm.parameters())


def test_inspection_tells_names_types_and_bytes_and_moves_no_generator() -> None:
    torch.manual_seed(3)
    state, python = torch.get_rng_state(), random.getstate()
    assert inspect_layers(images)[:2] == [
        LayerInfo(name="0", type="Conv2d", parameter_bytes=4 * (4 * 9 + 4), gradient_bytes=4 * (4 * 9 + 4)),
        LayerInfo(name="1", type="BatchNorm2d", parameter_bytes=4 * 8, buffer_bytes=4 * 8 + 8, gradient_bytes=4 * 8),
    ]
    assert inspect_layers(images) == inspect_layers(images, is_whole=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python


def test_user_generator_is_where_the_plain_build_leaves_it() -> None:
    generator = torch.Generator()

    def build() -> Any:
        model: Any = nn.Sequential(nn.Linear(300, 400), nn.Linear(3, 3))
        for layer in model:
            nn.init.uniform_(layer.weight, generator=generator)
        layer.bias.data.copy_(torch.randn(3, generator=generator))
        return model

    generator.manual_seed(5)
    plain, state = whole(build, SEED), generator.get_state()
    generator.manual_seed(5)
    inspect_layers(build)
    built = build_range(build, SEED, 1, 2)
    assert torch.equal(generator.get_state(), state)
    assert _is_same(plain[1][1], built[0][1])


def _older_trunc_normal(
    tensor: Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> Tensor:
    """As torch drew it up to 2.11 or so: once, uniformly, by the inverse of the distribution."""

    def below(bound: float) -> float:
        return (1.0 + math.erf((bound - mean) / std / math.sqrt(2.0))) / 2.0

    with torch.no_grad():
        tensor.uniform_(2 * below(a) - 1, 2 * below(b) - 1, generator=generator)
        return tensor.erfinv_().mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)


@pytest.mark.parametrize(("first", "end"), [(0, 1), (1, 3), (2, 3)])
def test_the_single_draw_of_older_torch_is_exact_too(monkeypatch: pytest.MonkeyPatch, first: int, end: int) -> None:
    monkeypatch.setattr(nn.init, "_no_grad_trunc_normal_", _older_trunc_normal)
    expected = whole(truncated, SEED)[first:end]
    after = torch.get_rng_state()
    for (_, layer), (_, truth) in zip(build_range(truncated, SEED, first, end), expected, strict=True):
        for name, value in truth.state_dict().items():
            assert torch.equal(layer.state_dict()[name], value), name
    assert torch.equal(torch.get_rng_state(), after)
