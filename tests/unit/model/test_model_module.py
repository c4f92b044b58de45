"""A part of a model that is no list: by the names of parameters and buffers, with the bits of the plain build."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from pipesvc.errors import PipesvcError
from pipesvc.model.marks import device_guard
from pipesvc.model.skeleton import build_module, inspect_units, whole
from tests.unit.model.ranges import inspect_layers
from tests.unit.model.replay_language import D, TiedFunctional, TiedParameter
from tests.unit.model.replay_zoo import ZOO

SEED = 3


class Mixed(nn.Module):
    """Copies, a parametrization, a scaled parameter of the root and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, D, batch_first=True), 2)
        self.normed = weight_norm(nn.Linear(D, D))
        self.scale = nn.Parameter(torch.randn(D) * 0.5)
        self.shift = nn.Parameter(torch.randn(D), requires_grad=False)
        self.register_buffer("noise", torch.randn(5))
        self.register_buffer("mask", torch.ones(4, 4).triu(1), persistent=False)
        self.large = nn.Parameter(torch.randn(300, 1024))
        nn.init.trunc_normal_(self.encoder.layers[1].linear1.weight)


BUILDS: dict[str, Callable[[], nn.Module]] = {"mixed": Mixed, **{name: case.build for name, case in ZOO.items()}}


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("name", BUILDS)
def test_every_part_has_the_bits_of_the_plain_build(name: str) -> None:
    build = BUILDS[name]
    torch.manual_seed(SEED)
    expected = state_of(build())
    after = torch.get_rng_state()
    names = list(expected)
    middle = len(names) // 2
    for owned in (names[:1], names[-1:], names[:middle], names[middle:], names[::2], names):
        model = build_module(build, SEED, owned)
        assert torch.equal(torch.get_rng_state(), after)
        found = state_of(model)
        assert list(found) == names
        for each, value in found.items():
            assert value.is_meta == (each not in owned), each
            assert (value.shape, value.dtype, value.requires_grad) == (
                expected[each].shape,
                expected[each].dtype,
                expected[each].requires_grad,
            )
            assert type(value) is type(expected[each])
            assert value.is_meta or torch.equal(value, expected[each])


def test_a_skeleton_draws_nothing_and_holds_nothing() -> None:
    before = torch.get_rng_state()
    assert all(value.is_meta for value in state_of(build_module(Mixed, SEED, ())).values())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("owned", [(), ("wte.weight",), ("ln_f.bias",)])
def test_tied_parameters_stay_tied(owned: tuple[str, ...]) -> None:
    model = build_module(TiedParameter, SEED, owned)
    assert model.wte.weight is model.lm_head.weight  # type: ignore[union-attr]
    assert model.wte.weight.is_meta == ("wte.weight" not in owned)  # type: ignore[union-attr]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PipesvcError, match=r"no parameter or buffer 'wte\.wait'"):
        build_module(TiedFunctional, SEED, ["wte.wait", "wte.weight"])


def test_a_list_is_refused_here() -> None:
    with pytest.raises(PipesvcError, match="the model function gave a list, not a module"):
        build_module(lambda: [nn.Linear(2, 2)], SEED, ())


def test_a_module_is_one_layer_without_a_name_until_its_forward_is_followed() -> None:
    for is_whole in (False, True):
        (info,) = inspect_layers(TiedParameter, is_whole=is_whole)
        assert (info.name, info.type, info.mark) == ("", "TiedParameter", "")
        assert info.parameter_bytes == sum(each.numel() * 4 for each in TiedParameter().parameters())
    units = inspect_units(build_module(TiedParameter, SEED, ()))
    assert [unit.name for unit in units] == ["wte", "wpe", "drop", "h.0", "h.1", "h.2", "h.3", "ln_f", "lm_head"]
    torch.manual_seed(SEED)
    plain = state_of(TiedParameter())
    ((name, built),) = whole(TiedParameter, SEED)
    assert name == ""
    assert all(torch.equal(value, plain[key]) for key, value in state_of(built).items())


def test_a_module_with_marks_of_several_stages_can_be_looked_at() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with device_guard("cpu:x"):
                self.first = nn.Linear(2, 2)
            with device_guard("cpu:y"):
                self.second = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x))
            return out

    assert [info.mark for info in inspect_layers(Marked)] == [""]
    assert [unit.mark for unit in inspect_units(build_module(Marked, SEED, ()))] == ["cpu:x", "cpu:y"]
