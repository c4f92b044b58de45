"""Schedulers are made on every stage and change the rates there as one process would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor.optimizing import SchedulerChoice
from pipesvc.worker.executor.parameter_groups import OptimizerChoice
from pipesvc.worker.optimizer_trial import Whole, try_updates
from tests.unit.executor import modules
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_both as train_both_modules
from tests.unit.executor.network import Setup, train, train_both
from tests.unit.executor.test_equality import CUTS, OPTIMIZERS, make_batches, make_layers
from tests.unit.executor.test_parameter_groups import PATTERNS, VARIANTS, by_hand
from tests.update_rules import halved

SCHEDULERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "OneCycleLR": (partial(lr_scheduler.OneCycleLR, max_lr=[0.5, 0.2, 0.05], total_steps=10), False),
    "LambdaLR": (partial(lr_scheduler.LambdaLR, lr_lambda=halved), True),
    "Cosine": (partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3), False),
    "StepLR": (partial(lr_scheduler.StepLR, step_size=1, gamma=0.1), True),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_a19_rates_of_groups_are_those_of_one_process(num_stages: int, name: str) -> None:
    """Ten steps are two epochs and a half here. With four stages, one has no parameters, and none has all groups."""
    make, is_by_epoch = SCHEDULERS[name]
    options: dict[str, Any] = {
        "make_layers": make_layers,
        "cuts": CUTS[num_stages],
        "loss": cross_entropy,
        "make_optimizer": VARIANTS["AdamW"],
        "groups": PATTERNS,
        "plain_optimizers": lambda model: [VARIANTS["AdamW"](by_hand(model))],
        "clip_norm": 0.1,
    }
    scheduler = SchedulerChoice(make=make, is_by_epoch=is_by_epoch)
    cluster = train_both(Setup(**options, scheduler=scheduler), make_batches(2))
    assert cluster.losses != train(Setup(**options), make_batches(2)).losses


def test_a_module_that_is_replayed_has_them_too() -> None:
    batches = modules.sentences(4, num_steps=6)
    setup = ModuleSetup(
        build=modules.Language,
        sample=batches[0][0][0],
        parts=3,
        loss=modules.token_loss,
        make_optimizer=VARIANTS["SGD"],
        scheduler=SchedulerChoice(make=partial(lr_scheduler.ExponentialLR, gamma=0.5), is_by_epoch=False),
    )
    train_both_modules(setup, batches)


@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_n23_the_rate_does_not_depend_on_the_number_of_micro_batches(num_micro_batches: int) -> None:
    setup = Setup(
        make_layers=make_layers,
        cuts=(2,),
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["sgd"],
        scheduler=SchedulerChoice(make=partial(lr_scheduler.StepLR, step_size=2), is_by_epoch=False),
    )
    cluster = train_both(setup, make_batches(num_micro_batches, num_steps=3))
    rates = [stage.updates.optimizers[0].param_groups[0]["lr"] for stage in cluster.stages.values()]
    assert rates == [pytest.approx(0.01)] * 2


def test_one_that_is_stepped_too_often_is_told_with_its_place() -> None:
    make = partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=2)
    setup = Setup(
        make_layers=make_layers, cuts=(2,), loss=cross_entropy, scheduler=SchedulerChoice(make=make, is_by_epoch=False)
    )
    with pytest.raises(PipesvcError, match="stepping the scheduler OneCycleLR: ValueError") as caught:
        train(setup, make_batches(2, num_steps=3))
    assert caught.value.code is ErrorCode.STAGE_FAILED
    assert caught.value.details.where.step == 3
    assert "once for each update" in caught.value.details.advice


def refused(make: Callable[..., Any], optimizer: Callable[..., Any] | None = None) -> str:
    sgd = partial(torch.optim.SGD, lr=0.1)
    choice = OptimizerChoice(make=optimizer or sgd, groups={"a": {"lr": 1.0}}, rule=None)
    parameters = {name: nn.Parameter(torch.zeros(2)) for name in "abc"}
    whole = Whole(parameters=parameters, sparse=frozenset())
    with pytest.raises(PipesvcError) as caught:
        try_updates([choice], SchedulerChoice(make=make, is_by_epoch=False), whole, Where())
    return str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lr_scheduler.ReduceLROnPlateau, "the scheduler ReduceLROnPlateau needs metrics for each step"),
        (lr_scheduler.StepLR, "making the scheduler over SGD: TypeError"),
        (
            partial(lr_scheduler.OneCycleLR, max_lr=[1, 2, 3], total_steps=5),
            "making the scheduler over SGD: ValueError",
        ),
        (lambda optimizer: 3, "the scheduler is a int, which has no step()"),
    ],
)
def test_what_a_stage_could_not_step_is_refused_before_the_run(make: Callable[..., Any], words: str) -> None:
    assert words in refused(make)


def test_an_optimizer_that_wants_a_closure_is_refused_before_the_run() -> None:
    def single(groups: list[Any]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS([each for group in groups for each in group["params"]], lr=0.1)

    assert "the optimizer LBFGS needs closure for each step" in refused(lr_scheduler.ConstantLR, single)
