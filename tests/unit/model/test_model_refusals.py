"""What cannot be built in parts is refused with the line that asked and the way out, in every process alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model import scratch, skeleton, trunc_normal
from pipesvc.model.skeleton import build_layers, whole
from tests.unit.model.ranges import build_range, inspect_layers

SEED = 7
SMALL = nn.Linear(2, 2)


def _reading(read: Callable[[Tensor], object]) -> Callable[[], Any]:
    def build() -> Any:
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        read(model[0].weight)
        return model

    return build


def _copy_into_real(weight: Tensor) -> None:
    torch.zeros(4, 4).copy_(weight.detach())


@pytest.mark.parametrize(
    "read",
    [
        lambda weight: weight.sum().item(),
        lambda weight: float(weight.norm()),
        lambda weight: bool((weight > 0).all()),
        lambda weight: weight.tolist(),
        lambda weight: weight.detach().numpy(),
        lambda weight: np.asarray(weight.detach()),
        lambda weight: torch.equal(weight, weight),
        lambda weight: weight[weight > 0],
        lambda weight: torch.linspace(0, 1, 4).data.copy_(weight[0].detach()),
        _copy_into_real,
    ],
    ids=["item", "float", "bool", "tolist", "numpy", "asarray", "equal", "mask", "copy", "copy_line"],
)
def test_reading_a_value_names_the_line(read: Callable[[Tensor], object]) -> None:
    for attempt in (lambda: inspect_layers(_reading(read)), lambda: build_range(_reading(read), SEED, 1, 2)):
        with pytest.raises(PipesvcError) as caught:
            attempt()
        assert caught.value.code is ErrorCode.BUILD_FAILED
        assert "test_model_refusals.py:" in str(caught.value)
        assert "one stage" in caught.value.details.advice
    assert len(inspect_layers(_reading(read), is_whole=True)) == 2
    assert len(whole(_reading(read), SEED)) == 2


def test_a_caught_refusal_is_still_one() -> None:
    def build() -> Any:
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        try:
            model[1].weight.data.mul_(model[0].weight.sum().item())
        except Exception:
            model[1].weight.data.zero_()
        return model

    with pytest.raises(PipesvcError, match="reads the value"):
        build_range(build, SEED, 1, 2)


def test_values_that_are_no_parameters_may_be_read() -> None:
    def build() -> Any:
        rates = [each.item() for each in torch.linspace(0, 0.5, 2)]
        large = torch.ones(1024, 1024)
        assert large.sum().item() == 1 << 20
        return nn.Sequential(*[nn.Dropout(rate) for rate in rates], nn.Linear(4, 4))

    assert [layer.type for layer in inspect_layers(build)] == ["Dropout", "Dropout", "Linear"]
    assert build_range(build, SEED, 1, 2)[0][1].p == 0.5


def test_weight_of_another_layer_copied_is_refused() -> None:
    def build() -> Any:
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].load_state_dict(model[0].state_dict())
        return model

    with pytest.raises(PipesvcError, match="reads the value"):
        build_range(build, SEED, 1, 2)
    assert len(build_range(build, SEED, 0, 2)) == 2


def test_error_of_user_code_comes_as_it_is() -> None:
    def build() -> Any:
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].weight.data.copy_(torch.zeros(5, 5))
        return model

    with pytest.raises(RuntimeError, match="5"):
        inspect_layers(build)


def test_modules_made_before_are_refused() -> None:
    with pytest.raises(PipesvcError, match="made before") as caught:
        build_range(lambda: [nn.Linear(2, 2), SMALL], SEED, 0, 1)
    assert "inside it" in caught.value.details.advice
    assert not SMALL.weight.is_meta


def test_another_model_at_the_second_call_is_refused() -> None:
    widths = iter(range(2, 100))

    def build() -> list[nn.Module]:
        return [nn.Linear(2, 2), nn.Linear(next(widths), 2)]

    build_range(lambda: [nn.Linear(2, 2), nn.Linear(2, 2)], SEED, 0, 1)
    with pytest.raises(PipesvcError, match="does not make the same"):
        build_range(build, SEED, 0, 1)


@pytest.mark.parametrize("owned", [[], [2], [-1]])
def test_indices_outside_the_model_are_refused(owned: list[int]) -> None:
    with pytest.raises(PipesvcError, match="the model has 2 layers"):
        build_layers(lambda: [nn.Linear(2, 2), nn.Linear(2, 2)], SEED, owned)


def test_lazy_layers_are_refused() -> None:
    for attempt in (lambda build: inspect_layers(build), lambda build: whole(build, SEED)):
        with pytest.raises(PipesvcError, match=r"'1' \(LazyLinear\) has no sizes") as caught:
            attempt(lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)))
        assert caught.value.code is ErrorCode.INVALID_JOB


def test_layer_without_values_is_refused() -> None:
    with pytest.raises(PipesvcError, match=r"0\.weight"):
        build_range(lambda: [nn.Linear(2, 2, device="meta"), nn.Linear(2, 2)], SEED, 0, 1)


def test_draws_that_cannot_be_made_in_parts_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_ways", {})
    monkeypatch.setattr(scratch, "_way_of", lambda draw: scratch._Way.NONE)
    with pytest.raises(PipesvcError, match=r"uniform_ at .*test_model_refusals.py:\d+"):
        build_range(lambda: [nn.Linear(700, 700), nn.Linear(2, 2)], SEED, 1, 2)


@pytest.mark.skipif(
    trunc_normal.draws_once(nn.init._no_grad_trunc_normal_), reason="this torch draws once, whatever the bounds"
)
def test_narrow_truncation_is_refused_by_name() -> None:
    def build() -> Any:
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        nn.init.trunc_normal_(model[0].weight, a=-0.1, b=0.1)
        return model

    with pytest.raises(PipesvcError, match="trunc_normal_"):
        build_range(build, SEED, 1, 2)
    assert len(build_range(build, SEED, 0, 2)) == 2


def test_unfit_torch_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(build: Callable[[], object], seed: int, owned: list[int]) -> object:
        return [(str(index), nn.Linear(300, 301)) for index in range(4)]

    skeleton._exact.cache_clear()
    monkeypatch.setattr("pipesvc.model.exact.build_layers", wrong)
    with pytest.raises(PipesvcError, match=r"torch 2\..* cannot build a part of a model exactly") as caught:
        build_range(lambda: [nn.Linear(2, 2), nn.Linear(2, 2)], SEED, 0, 1)
    assert caught.value.code is ErrorCode.BUILD_FAILED
    assert len(whole(lambda: [nn.Linear(2, 2)], SEED)) == 1
