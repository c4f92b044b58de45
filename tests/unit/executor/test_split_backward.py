"""I and W in executors: the bits of one process, with W computing what I has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from pipesvc.core.schedules import FILE
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.deferral import Late
from tests.unit.executor import modules
from tests.unit.executor.batches import batch_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_both as train_module
from tests.unit.executor.network import Cluster, JobSetup, Setup, train, train_both
from tests.unit.executor.owners import owners_of

NUM_MICRO_BATCHES = 4
SCHEDULES = ("ZBH1", "ZBV")


@pytest.fixture
def num_late(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each W found to do."""
    counts: list[int] = []
    accumulate = Late.accumulate

    def counted(late: Late) -> None:
        counts.append(len(late))
        accumulate(late)

    monkeypatch.setattr(Late, "accumulate", counted)
    return counts


def make_layers() -> list[nn.Module]:
    return [nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]


def make_batches(num_steps: int = 3) -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    return [
        batch_of(torch.randn(8, 6, generator=generator), torch.arange(8) % 4, 8, NUM_MICRO_BATCHES)
        for _ in range(num_steps)
    ]


def list_setup(schedule: str, **options: Any) -> Setup:
    defaults: dict[str, Any] = {
        "make_layers": make_layers,
        "cuts": (1, 2, 4),
        "owners": owners_of(schedule, 4),
        "loss": cross_entropy,
        "schedule": schedule,
    }
    return Setup(**defaults | options)


def module_setup(build: Callable[[], nn.Module], parts: int, schedule: str) -> ModuleSetup:
    return ModuleSetup(
        build=build,
        loss=modules.token_loss,
        sample=modules.sentences(NUM_MICRO_BATCHES)[0][0][0],
        parts=parts,
        schedule=schedule,
        owners=owners_of(schedule, parts),
        make_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        clip_norm=0.1,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_layers_of_a_list_are_split_from_the_second_step_on(schedule: str, num_late: list[int]) -> None:
    """In the first step each stage compares with a whole backward."""
    train_both(list_setup(schedule), make_batches(3))
    num_linears = 4
    assert sum(num_late) == 2 * NUM_MICRO_BATCHES * num_linears
    assert sum(num_late[: 4 * NUM_MICRO_BATCHES]) == 0


@pytest.mark.parametrize(("schedule", "parts"), [("ZBH1", 1), ("ZBH1", 4), ("ZBV", 4)])
def test_modules_that_are_cut_by_replay_are_split_too(schedule: str, parts: int, num_late: list[int]) -> None:
    batches = modules.sentences(NUM_MICRO_BATCHES)
    train_module(module_setup(modules.Language, parts, schedule), batches)
    # The output projections of attentions are used without their modules.
    num_linears = sum(type(module) is nn.Linear for module in modules.Language().modules())
    assert sum(num_late) == (len(batches) - 1) * NUM_MICRO_BATCHES * num_linears


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe"])
def test_whole_backwards_are_not_touched(schedule: str, num_late: list[int]) -> None:
    cluster = train(list_setup(schedule), make_batches(2))
    assert sum(num_late) == 0
    assert not any("forward" in module.__dict__ for module in _modules(cluster))


def _modules(cluster: Cluster) -> list[nn.Module]:
    layers = [layer for stage in cluster.stages.values() for _, layer in stage._program.layers]  # type: ignore[attr-defined]
    return [module for layer in layers for module in layer.modules()]


def test_a_file_may_split_some_backwards_and_not_others(num_late: list[int]) -> None:
    """Micro-batch 1 of stage 1 has B, the others have I and W; stage 0 has B alone."""
    text = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1I0,1W0,1F1,1B1,1F2,1F3,1I2,1I3,1W2,1W3\n"
    setup = list_setup(FILE, cuts=(2,), schedule_text=text)
    cluster = train_both(setup, make_batches(3))
    events = [event for trace in cluster.reported("trace") for event in trace.events if event.step == 2]
    for stage, backwards in ((0, "B0 B1 B2 B3"), (1, "I0 W0 B1 I2 I3 W2 W3")):
        found = [f"{each.action}{each.micro_batch}" for each in events if each.stage == stage]
        assert [each for each in found if each[0] in "BIW"] == backwards.split()
    num_linears = 4  # a B is an I and its W
    assert sum(num_late) == 2 * NUM_MICRO_BATCHES * num_linears


def test_n06_a_reentrant_checkpoint_keeps_its_backward_whole(num_late: list[int]) -> None:
    """What is outside of it is split."""
    train_both(list_setup("ZBH1", make_layers=lambda: [Remembering(True) for _ in range(5)]), make_batches(3))
    assert sum(num_late) == 2 * NUM_MICRO_BATCHES * 5


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_checkpoint_of_the_user_is_split(schedule: str, num_late: list[int]) -> None:
    train_both(list_setup(schedule, make_layers=lambda: [Remembering(False) for _ in range(5)]), make_batches(3))
    assert sum(num_late) == 2 * NUM_MICRO_BATCHES * 5 * 3


class Remembering(nn.Module):
    """Checkpoints two of its layers, between which numbers are drawn."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        def inner(h: Tensor) -> Tensor:
            found: Tensor = self.c(nn.functional.dropout(torch.tanh(self.b(h)), 0.3))
            return found

        result: Tensor = checkpoint(inner, self.a(x), use_reentrant=self.use_reentrant) + x
        return result


def test_micro_batches_live_until_their_w() -> None:
    cluster = Cluster(list_setup("ZBH1", cuts=(2,), owners=()), has_labels=True)
    stage = cluster.stages[1]
    alive: list[tuple[int, int]] = []
    weight_backward = stage.weight_backward

    def seen(micro_batch: int) -> None:
        alive.append((len(stage._live), len(stage._late)))
        weight_backward(micro_batch)

    stage.weight_backward = seen  # type: ignore[method-assign]
    cluster.train(make_batches(2))
    cluster.close()
    assert max(num_late for _, num_late in alive) == 2


def test_what_fails_in_w_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(late: Late) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Late, "accumulate", fail)
    with pytest.raises(PipesvcError, match="backward of the weights: RuntimeError: out of memory") as caught:
        train(list_setup("ZBH1", cuts=(2,), owners=()), make_batches(1))
    where = caught.value.details.where
    assert caught.value.code is ErrorCode.STAGE_FAILED
    assert (where.step, where.stage, where.micro_batch) == (1, 0, 0)


def test_n20_the_statistics_of_a_split_stage_count_micro_batches_once() -> None:
    def layers() -> list[nn.Module]:
        return [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)]

    cluster = train_both(list_setup("ZBH1", make_layers=layers), make_batches(2))
    assert int(cluster.state()["1.num_batches_tracked"]) == 2 * NUM_MICRO_BATCHES


def _setups() -> list[JobSetup]:
    return [list_setup(schedule) for schedule in SCHEDULES]


@pytest.mark.parametrize("setup", _setups(), ids=SCHEDULES)
def test_a_micro_batch_that_is_all_masked_leaves_w_nothing(setup: Setup, num_late: list[int]) -> None:
    inputs, labels, _ = make_batches(1)[0]
    batches = [
        (inputs, labels, weights) for weights in ([2.0, 0.0, 2.0, 2.0], [0.0, 2.0, 2.0, 0.0], [2.0, 2.0, 0.0, 2.0])
    ]
    train_both(setup, batches)
    num_linears, num_weighed = 4, 2 + 3  # from the second step on
    assert sum(num_late) == num_linears * num_weighed
