"""Activations that are computed again: the same bits, for lists and modules, under every schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils.parametrizations import spectral_norm

from pipesvc.core.schedules import SCHEDULE_NAMES
from pipesvc.errors import PipesvcError
from pipesvc.model.recompute import Recompute
from tests.unit.executor import modules
from tests.unit.executor.batches import Batch, batch_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_both as train_module
from tests.unit.executor.network import Setup, train, train_both
from tests.unit.executor.owners import owners_of
from tests.unit.model.replay_language import Block

NUM_MICRO_BATCHES = 4
ALL = Recompute(is_all=True)


class Counted(nn.Module):
    """Counts its forwards outside the numbers; draws, and has running statistics."""

    num_forwards = 0
    seen: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        type(self).num_forwards += 1
        self.seen = self.seen + x.detach().mean()
        h = nn.functional.dropout(torch.relu_(self.norm(self.a(x))), 0.3)
        result: Tensor = self.b(h) + x
        return result


def counted_layers() -> list[nn.Module]:
    return [nn.Linear(6, 8), Counted(8), nn.ReLU(inplace=True), Counted(8), nn.Linear(8, 4)]


def make_batches(num_steps: int = 3) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    return [
        batch_of(torch.randn(12, 6, generator=generator), torch.arange(12) % 4, 12, NUM_MICRO_BATCHES)
        for _ in range(num_steps)
    ]


def list_setup(schedule: str, recompute: Recompute, **options: Any) -> Setup:
    defaults: dict[str, Any] = {
        "make_layers": counted_layers,
        "cuts": (1, 2, 4),
        "owners": owners_of(schedule, 4),
        "loss": cross_entropy,
        "schedule": schedule,
        "recompute": recompute,
    }
    return Setup(**defaults | options)


@pytest.mark.parametrize("recompute", [ALL, Recompute(patterns=("1", "3.norm", "3.b"))], ids=["all", "some"])
@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_n21_n22_lists_are_equal_with_and_without_recompute(schedule: str, recompute: Recompute) -> None:
    """BatchNorm's statistics and counter, a buffer that forward replaces, dropout, and a first operation in place."""
    cluster = train_both(list_setup(schedule, recompute), make_batches())
    assert int(cluster.state()["1.norm.num_batches_tracked"]) == 3 * NUM_MICRO_BATCHES


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
@pytest.mark.parametrize("recompute", [Recompute(), ALL], ids=["without", "with"])
def test_n20_n21_batch_norm_counts_micro_batches(num_micro_batches: int, recompute: Recompute) -> None:
    torch.manual_seed(3)
    batches = [batch_of(torch.randn(8, 6), torch.arange(8) % 4, 8, num_micro_batches)]
    cluster = train_both(list_setup("1F1B", recompute), batches)
    assert int(cluster.state()["1.norm.num_batches_tracked"]) == num_micro_batches


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_forwards_run_twice_where_they_are_recomputed(schedule: str) -> None:
    counts = []
    for recompute in (Recompute(), ALL, Recompute(patterns=("3",))):
        Counted.num_forwards = 0
        train_both(list_setup(schedule, recompute), make_batches(1))
        counts.append(Counted.num_forwards - 2 * NUM_MICRO_BATCHES)  # of the plain run
    assert counts == [2 * NUM_MICRO_BATCHES, 4 * NUM_MICRO_BATCHES, 3 * NUM_MICRO_BATCHES]


class Shift(nn.Module):
    """In place and not idempotent: a second run on its own output gives other numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.mul_(3).add_(1))


@pytest.mark.parametrize("recompute", [Recompute(), ALL], ids=["without", "with"])
@pytest.mark.parametrize("first", [Shift, lambda: nn.ReLU(inplace=True)])
def test_n09_a_stage_whose_first_operation_is_in_place(first: Any, recompute: Recompute) -> None:
    def layers() -> list[nn.Module]:
        return [nn.Linear(6, 8), first(), nn.Linear(8, 8), first(), nn.Linear(8, 4)]

    train_both(list_setup("1F1B", recompute, make_layers=layers, cuts=(1, 3), owners=()), make_batches())


class Masked(nn.Module):
    """Passes a mask on, which wants no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, mask = pair
        return torch.tanh(self.a(h)) * mask, mask


class First(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0].square().mean()


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZBH1"])
def test_n25_a_mask_that_is_passed_through_recomputed_layers(schedule: str) -> None:
    mask = (torch.arange(12) % 3 > 0).float()[:, None].expand(12, 6).contiguous()
    torch.manual_seed(3)
    batches = [batch_of((torch.randn(12, 6), mask), None, 12, NUM_MICRO_BATCHES) for _ in range(3)]
    setup = list_setup(
        schedule, ALL, make_layers=lambda: [Masked(), Masked(), Masked(), First()], cuts=(1, 2), owners=(), loss=None
    )
    train_both(setup, batches)


# What runs again of a micro-batch: forwards of blocks, of their attentions, and of all LayerNorms.
ALL_PARTS = (ALL, (4, 4, 9))
BLOCKS = (Recompute(patterns=("h.*",)), (4, 4, 8))
INSIDE_BLOCKS = (Recompute(patterns=("h.?.feed", "*.attention")), (0, 4, 4))
SOME_PARTS = (Recompute(patterns=("h.1", "ln_f")), (1, 1, 3))
KINDS: tuple[type[nn.Module], ...] = (Block, nn.MultiheadAttention, nn.LayerNorm)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Counter[type[nn.Module]]:
    """By kind, those on values and with gradients."""
    counts: Counter[type[nn.Module]] = Counter()

    def watch(kind: type[nn.Module]) -> None:
        forward = kind.forward

        def counted(module: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            counts[kind] += type(x) is Tensor and not x.is_meta
            return forward(module, x, *args, **kwargs)

        monkeypatch.setattr(kind, "forward", counted)

    for kind in KINDS:
        watch(kind)
    return counts


def train_counted(
    setup: ModuleSetup, batches: Sequence[Batch], forwards: Counter[type[nn.Module]], again: tuple[int, ...]
) -> None:
    """The network and the plain loop call each module once for a micro-batch, but for what runs `again`."""
    train_module(setup, batches)
    total = NUM_MICRO_BATCHES * len(batches)
    called = [2 * number + more for number, more in zip((4, 4, 9), again, strict=True)]
    assert [forwards[kind] for kind in KINDS] == [total * number for number in called]


@pytest.mark.parametrize(("recompute", "again"), [ALL_PARTS, BLOCKS, INSIDE_BLOCKS], ids=["all", "blocks", "inside"])
@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B", "ZBV"])
def test_n25_modules_that_are_cut_by_replay_are_equal_too(
    schedule: str, recompute: Recompute, again: tuple[int, ...], forwards: Counter[type[nn.Module]]
) -> None:
    setup = module_setup(modules.Language, 4, schedule, recompute)
    train_counted(setup, modules.sentences(NUM_MICRO_BATCHES), forwards, again)


@pytest.mark.parametrize(("recompute", "again"), [ALL_PARTS, SOME_PARTS], ids=["all", "some"])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_and_modules_of_one_stage(
    schedule: str, recompute: Recompute, again: tuple[int, ...], forwards: Counter[type[nn.Module]]
) -> None:
    setup = module_setup(modules.Language, 1, schedule, recompute)
    train_counted(setup, modules.sentences(NUM_MICRO_BATCHES), forwards, again)


def test_stages_of_one_worker_recompute_their_own_units(forwards: Counter[type[nn.Module]]) -> None:
    setup = module_setup(modules.Language, 4, "1F1B", ALL, owners="abba")
    train_counted(setup, modules.sentences(NUM_MICRO_BATCHES), forwards, ALL_PARTS[1])


def module_setup(build: Any, parts: int, schedule: str, recompute: Recompute, owners: str = "") -> ModuleSetup:
    return ModuleSetup(
        build=build,
        loss=modules.token_loss,
        sample=modules.sentences(NUM_MICRO_BATCHES)[0][0][0],
        parts=parts,
        schedule=schedule,
        owners=list(owners) or owners_of(schedule, parts),
        make_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        recompute=recompute,
    )


class Smoothed(nn.BatchNorm1d):
    """Normalises by its running statistics, which it updates first."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        return nn.functional.batch_norm(x, self.running_mean.clone(), self.running_var.clone())


class Codes(nn.Module):
    """A moving average that decides what is computed; it is replaced, or written in place, from some call on."""

    code: Tensor

    def __init__(self, *, is_in_place: bool = False, first_call: int = 1) -> None:
        super().__init__()
        self.register_buffer("code", torch.ones(8))
        self.linear = nn.Linear(8, 8)
        self.is_in_place, self.calls_left = is_in_place, first_call

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x * self.code.clone())
        self.calls_left -= 1
        if self.calls_left <= 0:
            moved = 0.9 * self.code + 0.1 * x.detach().mean(0)
            self.code = self.code.copy_(moved) if self.is_in_place else moved
        return y


@pytest.mark.parametrize(
    "make",
    [
        Codes,
        partial(Codes, is_in_place=True),
        partial(Smoothed, 8),
        lambda: old_spectral_norm(nn.Linear(8, 8)),
        lambda: spectral_norm(nn.Linear(8, 8)),
    ],
)
@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_buffers_that_decide_what_is_computed_are_as_they_were(schedule: str, make: Callable[[], nn.Module]) -> None:
    def layers() -> list[nn.Module]:
        return [nn.Linear(6, 8), make(), nn.Tanh(), nn.Sequential(make(), nn.Tanh()), nn.Linear(8, 4)]

    train_both(list_setup(schedule, ALL, make_layers=layers), make_batches())


def test_a_buffer_that_is_written_in_place_later_on_is_refused() -> None:
    def layers() -> list[nn.Module]:
        return [nn.Linear(6, 8), Codes(is_in_place=True, first_call=3), nn.Tanh(), nn.Linear(8, 4)]

    with pytest.raises(PipesvcError, match="Codes wrote to its buffer 'code' in place, and did not") as caught:
        train(list_setup("1F1B", ALL, make_layers=layers, cuts=(2,)), make_batches())
    assert caught.value.details.advice.startswith("Leave this module out of recompute")
