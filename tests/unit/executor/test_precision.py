"""Autocast, and one scaler for all stages: the bits and the scales of a plain loop with torch.amp.GradScaler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.recompute import Recompute
from pipesvc.rpc.v1 import job_pb2
from pipesvc.worker.executor import precision
from pipesvc.worker.executor.deciding import Decider, Decision, Report
from pipesvc.worker.executor.optimizing import SchedulerChoice
from pipesvc.worker.executor.scaling import LossScale, ScalerSettings, first_scale, next_scale
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.optimizer_trial import Whole, refuse_unscalable
from tests.unit.executor import modules
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_both as train_both_modules
from tests.unit.executor.network import Setup, train, train_both
from tests.unit.executor.owners import owners_of
from tests.unit.executor.test_equality import CUTS, OPTIMIZERS, make_batches, make_layers
from tests.unit.executor.test_sparse import adamw, sgd, sparse_adam, sparse_layers, word_batches

DTYPES = [torch.bfloat16, torch.float16]


def scaler(**changes: Any) -> ScalerSettings:
    options = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}
    return ScalerSettings(**(options | changes))


class Branching(nn.Module):
    """Uses what it gets in three operations, as attention does: each casts it for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x) for part in self.parts)
        result: Tensor = checkpoint(lambda y: torch.tanh(self.parts[0](y)), q * k + v, use_reentrant=False) + x
        return result


def branching_layers() -> list[nn.Module]:
    return [nn.Linear(6, 16), nn.LayerNorm(16), Branching(), nn.Tanh(), Branching(), nn.Linear(16, 4)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_autocast_in_a_list_of_layers(num_stages: int, dtype: torch.dtype) -> None:
    """Boundaries in both precisions, recompute in a layer, and what crosses is used several times."""
    setup = Setup(
        make_layers=branching_layers,
        cuts=CUTS[num_stages],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["adamw"],
        autocast=dtype,
        clip_norm=0.1,
    )
    losses = train_both(setup, make_batches(4)).losses
    assert losses != train(replace(setup, autocast=None), make_batches(4)).losses


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_autocast_in_a_module_that_is_replayed(parts: int, dtype: torch.dtype) -> None:
    batches = modules.sentences(4)
    options: dict[str, Any] = {
        "build": modules.Language,
        "sample": batches[0][0][0],
        "parts": parts,
        "loss": modules.token_loss,
        "make_optimizer": OPTIMIZERS["adamw"],
    }
    losses = train_both_modules(ModuleSetup(**options, autocast=dtype, scaler=scaler()), batches).losses
    assert losses != train_both_modules(ModuleSetup(**options), batches).losses


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_autocast_and_scaler_with_recomputation_and_split_backwards(schedule: str, dtype: torch.dtype) -> None:
    """What is recomputed is cast as in the forward; gradients are unscaled after the last W."""
    setup = Setup(
        make_layers=branching_layers,
        cuts=CUTS[3],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["adamw"],
        schedule=schedule,
        recompute=Recompute(is_all=True),
        autocast=dtype,
        scaler=scaler(),
        clip_norm=0.1,
    )
    train_both(setup, make_batches(4))


class _Trap(torch.autograd.Function):
    """Passes its input and its gradient on; the gradient of `gain` overflows where it is set."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, is_set: bool) -> Tensor:
        ctx.is_set = is_set
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], torch.full((), float("inf" if ctx.is_set else 1.0)), None


class Trap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        result: Tensor = _Trap.apply(x, self.gain, self.num_calls in (6, 7, 25))  # type: ignore[no-untyped-call]
        return result


def trapped_layers() -> list[nn.Module]:
    """Four micro-batches to a step: steps 2 and 7 overflow, on the stage with the trap alone."""
    return [nn.Linear(6, 16), nn.LayerNorm(16), Trap(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[int, bool]], list[Decision]]:
    """Reports (stage, overflowed) and decisions, in order."""
    reports: list[tuple[int, bool]] = []
    decisions: list[Decision] = []
    report, decide = Stage.report, Decider.decide

    def seen_report(stage: Stage) -> Report:
        made = report(stage)
        reports.append((stage.spec.index, bool(made.overflowed)))
        return made

    def seen_decide(decider: Decider, step: int, given: Sequence[Report]) -> Decision:
        decisions.append(decide(decider, step, given))
        return decisions[-1]

    monkeypatch.setattr(Stage, "report", seen_report)
    monkeypatch.setattr(Decider, "decide", seen_decide)
    return reports, decisions


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZBV"])
@pytest.mark.parametrize("clips", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}], ids=str)
def test_an_overflow_on_one_stage_skips_the_step_on_all(
    seen: tuple[list[tuple[int, bool]], list[Decision]], clips: dict[str, float], schedule: str
) -> None:
    """A scheduler by step goes on over skipped steps, as in the plain loop."""
    setup = Setup(
        make_layers=trapped_layers,
        cuts=(1, 2, 4),
        owners=owners_of(schedule, 4),
        schedule=schedule,
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["adamw"],
        scheduler=SchedulerChoice(make=partial(lr_scheduler.StepLR, step_size=1, gamma=0.7), is_by_epoch=False),
        scaler=scaler(init_scale=64.0),
        **clips,  # type: ignore[arg-type]
    )
    train_both(setup, make_batches(4))
    reports, decisions = seen
    assert {stage for stage, overflowed in reports if overflowed} == {2}
    assert [step for step, each in enumerate(decisions, 1) if each.skips] == [2, 7]
    assert [each.scale for each in decisions] == setup.plain_scales == [64, 32, 32, 32, 64, 64, 32, 32, 32, 64]


def trap_and_rest(model: nn.Module) -> list[torch.optim.Optimizer]:
    named = dict(model.named_parameters())
    return [sgd([named.pop("2.gain"), named.pop("5.weight")]), adamw(list(named.values()))]


@pytest.mark.parametrize("clips", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}], ids=str)
def test_of_several_optimizers_those_update_whose_gradients_are_finite(
    seen: tuple[list[tuple[int, bool]], list[Decision]], clips: dict[str, float]
) -> None:
    """As behind torch's scaler, on whichever stages they are; where all are clipped by one norm, none does."""
    setup = Setup(
        make_layers=trapped_layers,
        cuts=(1, 2, 4),
        loss=cross_entropy,
        more_optimizers={"[25].[gw]*": sgd},
        make_optimizer=adamw,
        plain_optimizers=trap_and_rest,
        scaler=scaler(init_scale=64.0),
        **clips,  # type: ignore[arg-type]
    )
    before = {name: value.clone() for name, value in train(setup, make_batches(4, num_steps=1)).state().items()}
    cluster = train_both(setup, make_batches(4, num_steps=2))
    assert [each.skips for each in seen[1]] == [[], [], [0]]
    changed = {name for name, value in cluster.state().items() if not torch.equal(value, before[name])}
    assert changed == (set() if "clip_norm" in clips else before.keys() - {"2.gain", "5.weight"})


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_float16_with_a_scaler_that_overflows_by_itself(num_stages: int) -> None:
    """The first scales are too large for float16, the later ones not: the run finds one that is right."""
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[num_stages],
        loss=cross_entropy,
        make_optimizer=partial(torch.optim.AdamW, lr=0.01, fused=True),
        autocast=torch.float16,
        scaler=scaler(init_scale=2.0**22),
        clip_norm=0.1,
    )
    cluster = train_both(setup, make_batches(4))
    assert len(set(setup.plain_scales)) > 2
    assert {stage._scale for stage in cluster.stages.values()} == {setup.plain_scales[-1]}


def table_and_rest(model: nn.Module) -> list[torch.optim.Optimizer]:
    table, *rest = model.parameters()
    return [sparse_adam([table]), adamw(rest)]


def test_sparse_gradients_are_unscaled_and_a_stage_may_have_none() -> None:
    setup = Setup(
        make_layers=sparse_layers,
        cuts=(1, 3, 4),
        loss=cross_entropy,
        more_optimizers={"0.*": sparse_adam},
        make_optimizer=adamw,
        plain_optimizers=table_and_rest,
        scaler=scaler(init_scale=1000.0, growth_interval=1, growth_factor=1.5),
        clip_norm=0.02,
    )

    train_both(setup, word_batches())


def test_scales_are_those_of_torch_over_any_sequence() -> None:
    """Also where it would grow beyond float32, and with factors that no float32 number is."""
    settings = scaler(init_scale=3e38, growth_factor=1.1, backoff_factor=0.3, growth_interval=2)
    theirs = torch.amp.GradScaler("cpu", init_scale=3e38, growth_factor=1.1, backoff_factor=0.3, growth_interval=2)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    theirs.scale(torch.zeros(()))  # makes its state
    ours = first_scale(settings)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        overflowed = bool(torch.rand((), generator=generator) < 0.2)
        parameter.grad = torch.tensor([float("inf") if overflowed else 0.0])
        theirs.step(optimizer)
        theirs.update()
        ours = next_scale(ours, settings, overflowed=overflowed)
        assert ours.value == theirs.get_scale()
        assert ours.num_good == theirs._get_growth_tracker()


def test_a_scale_grows_after_good_steps_in_a_row_alone() -> None:
    settings, scale = scaler(), LossScale(value=8.0)
    values = []
    for overflowed in (False, False, True, False, False, False, False):
        scale = next_scale(scale, settings, overflowed=overflowed)
        values.append(scale.value)
    assert values == [8, 8, 4, 4, 4, 8, 8]


def test_decisions_travel_as_plain_values() -> None:
    report = Report(norms=None, overflowed=[1])
    assert Report.of_nest(report.to_nest()) == report
    decision = Decider(0.0, scaler()).decide(1, [Report(norms=None, overflowed=[]), report])
    assert Decision.of_nest(decision.to_nest()) == decision
    assert (decision.skips, decision.scale, decision.coefficient) == ([1], 32768.0, None)


def test_every_kind_of_autocast_has_a_dtype_and_others_are_refused() -> None:
    dtypes: list[Any] = [precision.autocast_dtype(cast(job_pb2.Autocast, each)) for each in job_pb2.Autocast.values()]
    assert dtypes == [None, torch.bfloat16, torch.float16]
    unknown = cast(job_pb2.Autocast, 7)
    with pytest.raises(PipesvcError, match="autocast is the unknown number 7"):
        precision.autocast_dtype(unknown)


def test_parameters_in_float16_cannot_be_scaled() -> None:
    whole = Whole.of([("0", nn.Linear(2, 2)), ("1", nn.Linear(2, 2).half())])
    with pytest.raises(PipesvcError, match=r"'1\.weight' is in float16") as caught:
        refuse_unscalable(whole, Where())
    assert caught.value.code is ErrorCode.INVALID_JOB
    make: Callable[[], nn.Module] = partial(nn.Linear, 2, 2)
    refuse_unscalable(Whole.of([("0", make())]), Where())
