"""A training that goes on from a checkpoint, on whatever stages, has the bits of one that was never interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

from pipesvc.worker.executor.optimizing import SchedulerChoice
from pipesvc.worker.executor.scaling import ScalerSettings
from tests.unit.executor import checkpoints, modules
from tests.unit.executor.batches import Batch
from tests.unit.executor.network import Cluster, JobSetup, Setup, train, train_plain
from tests.unit.executor.test_equality import CUTS, make_batches, make_layers
from tests.unit.executor.test_sparse import adamw, sparse_adam, sparse_layers, word_batches
from tests.unit.executor.tied_models import make_setup

NUM_BEFORE = 5  # in the middle of the second epoch

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "tensor rate": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    "NAdam": partial(torch.optim.NAdam, lr=0.01),
    "RAdam": partial(torch.optim.RAdam, lr=0.01),
    "Adamax": partial(torch.optim.Adamax, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.01, initial_accumulator_value=0.1),
    "Adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "Rprop": partial(torch.optim.Rprop, lr=0.01),
    "ASGD": partial(torch.optim.ASGD, lr=0.01),
    "Adafactor": partial(torch.optim.Adafactor, lr=0.01),
}


def halved(epoch: int) -> float:
    return 0.5**epoch


def two_phases(optimizer: torch.optim.Optimizer) -> Any:
    phases = [lr_scheduler.LinearLR(optimizer, total_iters=3), lr_scheduler.ExponentialLR(optimizer, gamma=0.9)]
    return lr_scheduler.SequentialLR(optimizer, phases, milestones=[4])


SCHEDULERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "OneCycleLR": (partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20), False),
    "CyclicLR": (partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3), False),
    "LambdaLR": (partial(lr_scheduler.LambdaLR, lr_lambda=halved), True),
    "MultiStepLR": (partial(lr_scheduler.MultiStepLR, milestones=[2, 6, 6, 9]), False),
    "Warm restarts": (partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3), False),
    "SequentialLR": (two_phases, False),
    "PolynomialLR": (partial(lr_scheduler.PolynomialLR, total_iters=12), True),
}


def interrupted(setup: JobSetup, other: JobSetup, batches: Sequence[Batch], folder: Path) -> Cluster:
    """Trains a part on one cut and the rest on another, and insists on the bits of one process."""
    has_labels = batches[0][1] is not None
    first = Cluster(setup, has_labels=has_labels)
    losses = first.train(batches[:NUM_BEFORE])
    files = checkpoints.saved(first, NUM_BEFORE, folder)
    first.close()
    second = Cluster(other, has_labels=has_labels, files=files)
    losses = losses + second.train(batches[NUM_BEFORE:])
    second.close()
    whole = train(setup, batches)
    assert losses == whole.losses
    found, expected = second.state(), whole.state()
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    return second


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a19_the_state_of_every_optimizer_goes_to_stages_of_another_cut(name: str, tmp_path: Path) -> None:
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[3],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS[name],
        groups={"*.bias": {"weight_decay": 0.0}},
    )
    batches = make_batches(2)
    second = interrupted(setup, replace(setup, cuts=CUTS[2]), batches, tmp_path)
    fresh = train(replace(setup, cuts=CUTS[2]), batches[NUM_BEFORE:])
    assert second.losses != fresh.losses


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a19_schedulers_go_on_in_the_middle_of_an_epoch(name: str, num_stages: int, tmp_path: Path) -> None:
    """With four stages, one has no parameters."""
    make, is_by_epoch = SCHEDULERS[name]
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[4],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["SGD"],
        scheduler=SchedulerChoice(make=make, is_by_epoch=is_by_epoch),
        clip_norm=0.5,
    )
    interrupted(setup, replace(setup, cuts=CUTS[num_stages]), make_batches(2), tmp_path)


def test_the_scale_of_the_loss_and_its_good_steps_go_on(tmp_path: Path) -> None:
    """It grows after each three good steps; five were made."""
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[2],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["SGD"],
        autocast=torch.float16,
        scaler=ScalerSettings(init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3),
    )
    batches = make_batches(2)
    second = interrupted(setup, replace(setup, cuts=CUTS[3]), batches, tmp_path)
    train_plain(setup, batches)
    scale = second.runtimes["worker-0"]._decider.scale
    assert scale is not None
    assert scale.value == setup.plain_scales[-1] > 1024.0


def test_several_optimizers_find_their_own(tmp_path: Path) -> None:
    setup = Setup(
        make_layers=sparse_layers,
        cuts=(1,),
        loss=cross_entropy,
        make_optimizer=adamw,
        more_optimizers={"0.*": sparse_adam},
    )
    interrupted(setup, replace(setup, cuts=(2,)), word_batches(2), tmp_path)


def test_frozen_parameters_and_buffers_come_along(tmp_path: Path) -> None:
    def layers() -> list[nn.Module]:
        return [
            nn.Linear(6, 16).requires_grad_(False),
            nn.BatchNorm1d(16),
            nn.Linear(16, 16),
            nn.ReLU(),
            nn.Linear(16, 4),
        ]

    setup = Setup(make_layers=layers, cuts=(1, 3), loss=cross_entropy, make_optimizer=OPTIMIZERS["AdamW"])
    second = interrupted(setup, replace(setup, cuts=(2,)), make_batches(2), tmp_path)
    assert second.state()["1.num_batches_tracked"] == 20


@pytest.mark.parametrize("name", ["encoder-decoder", "layers"])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 3), (3, 1)])
def test_n10_tied_weights_go_on_with_one_state(name: str, before: int, after: int, tmp_path: Path) -> None:
    """Whoever owns them then has what their owner of before kept."""
    batches = modules.sentences(2, num_steps=NUM_BEFORE + 3)
    interrupted(make_setup(name, before), make_setup(name, after), batches, tmp_path)


class Odd(torch.optim.SGD):
    """Keeps state in types of its own: finer than its parameters, counted, chosen and named."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in (each for each in group["params"] if each.grad is not None):
                state = self.state[each]
                if not state:
                    state["sum"] = torch.zeros_like(each, dtype=torch.float64)
                    state["count"] = torch.full((), 2**24 + 1)
                    state["mask"] = torch.ones_like(each, dtype=torch.bool)
                    state["word"], state["calls"] = "odd", 0
                state["sum"] += each.grad.double() / 3
                state["count"] += 1
                state["mask"] &= each.grad >= 0
                state["calls"] += 1
                assert state["word"] == "odd"
                each.grad.add_((state["sum"] * (state["count"] - 2**24)).float()).mul_(state["mask"] + state["calls"])
        return super().step(closure)


def test_state_keeps_its_own_types(tmp_path: Path) -> None:
    make = partial(Odd, lr=1e-4)
    setup = Setup(make_layers=make_layers, cuts=CUTS[3], loss=cross_entropy, make_optimizer=make)
    interrupted(setup, replace(setup, cuts=CUTS[2]), make_batches(2), tmp_path)
