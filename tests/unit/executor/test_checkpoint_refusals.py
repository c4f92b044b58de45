"""Checkpoints from which a training cannot go on as it was: each is refused by what is wrong, with the way out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.worker.executor.optimizing import SchedulerChoice
from tests.unit.executor import checkpoints
from tests.unit.executor.network import CheckpointFiles, Cluster, Setup
from tests.unit.executor.test_checkpoints import OPTIMIZERS
from tests.unit.executor.test_equality import CUTS, make_batches, make_layers

STEP_LR = SchedulerChoice(make=partial(lr_scheduler.StepLR, step_size=2), is_by_epoch=False)


def test_a_checkpoint_with_a_scheduler_is_refused_without_it(tmp_path: Path) -> None:
    setup = Setup(make_layers=make_layers, cuts=CUTS[2], loss=cross_entropy, scheduler=STEP_LR)
    cluster = Cluster(setup, has_labels=True)
    cluster.train(make_batches(2)[:1])
    files = checkpoints.saved(cluster, 1, tmp_path)
    cluster.close()
    with pytest.raises(PipesvcError, match="the checkpoint has StepLR, and the job has no scheduler"):
        Cluster(replace(setup, scheduler=None), has_labels=True, files=files)


def test_a_checkpoint_of_another_optimizer_is_refused_with_the_way_out(tmp_path: Path) -> None:
    setup = Setup(make_layers=make_layers, cuts=CUTS[2], loss=cross_entropy, make_optimizer=OPTIMIZERS["SGD"])
    cluster = Cluster(setup, has_labels=True)
    cluster.train(make_batches(2)[:1])
    files = checkpoints.saved(cluster, 1, tmp_path)
    cluster.close()
    for changed, said in (
        (replace(setup, make_optimizer=OPTIMIZERS["Adam"]), "the checkpoint is of SGD, and the job has Adam"),
        (replace(setup, groups={"0.*": {"lr": 1.0}}), "SGD has 1 groups in the checkpoint and 2 in the job"),
        (replace(setup, scheduler=STEP_LR), "the checkpoint has no scheduler, and the job has StepLR"),
        (
            replace(setup, more_optimizers={"3.*": OPTIMIZERS["SGD"]}),
            "was with optimizer 0 in the checkpoint and is with 1 now",
        ),
    ):
        with pytest.raises(PipesvcError, match="init= instead of resume=") as caught:
            Cluster(changed, has_labels=True, files=files)
        assert said in caught.value.details.message
        assert caught.value.code is ErrorCode.INVALID_JOB


class Remembering(torch.optim.SGD):
    """Keeps what no file can hold."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["seen"] = {object()}
        return super().step(closure)


def test_state_that_cannot_be_saved_costs_no_weights_and_is_told_when_it_is_wanted(tmp_path: Path) -> None:
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[2],
        loss=cross_entropy,
        make_optimizer=lambda parameters: Remembering(parameters, lr=0.1),
    )
    cluster = Cluster(setup, has_labels=True)
    cluster.train(make_batches(2)[:1])
    files = checkpoints.saved(cluster, 1, tmp_path)
    cluster.close()
    assert set(files.weights.layout().names) == set(cluster.state())
    with pytest.raises(PipesvcError, match=r"on stage 0, the groups of Remembering\[0\]\['seen'\] is a set"):
        Cluster(setup, has_labels=True, files=files)


class Broken(lr_scheduler.StepLR):
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("no state today")


class Telling(torch.optim.SGD):
    """Changes an option of its group by what its own parameters are, as no stage can agree on."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["norm"] = float(sum(each.detach().norm() for each in self.param_groups[0]["params"]))
        return super().step(closure)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"scheduler": SchedulerChoice(make=partial(Broken, step_size=1), is_by_epoch=False)},
            "weights alone: on stage 0, RuntimeError: no state today",
        ),
        ({"make_optimizer": partial(Telling, lr=0.1)}, "the options of Telling differ between the stages"),
    ],
)
def test_what_a_stage_cannot_tell_or_agree_on_is_told_when_it_is_wanted(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    setup = replace(Setup(make_layers=make_layers, cuts=CUTS[2], loss=cross_entropy), **changes)
    cluster = Cluster(setup, has_labels=True)
    cluster.train(make_batches(2)[:1])
    files = checkpoints.saved(cluster, 1, tmp_path)
    cluster.close()
    assert set(files.weights.layout().names) == set(cluster.state())
    with pytest.raises(PipesvcError, match=said):
        Cluster(setup, has_labels=True, files=files)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("tensor", "has lost what the optimizer kept of 0.weight"),
        ("stage", "0.weight was not trained in the checkpoint"),
    ],
)
def test_a_checkpoint_that_has_lost_something_is_refused(lost: str, said: str, tmp_path: Path) -> None:
    setup = Setup(make_layers=make_layers, cuts=CUTS[2], loss=cross_entropy, make_optimizer=OPTIMIZERS["SGD"])
    cluster = Cluster(setup, has_labels=True)
    cluster.train(make_batches(2)[:1])
    checkpoints.saved(cluster, 1, tmp_path)
    cluster.close()
    with safe_open(tmp_path / "True", "pt") as file:
        metadata = {key: text for key, text in file.metadata().items() if (lost, key) != ("stage", "stage-0")}
        names = [name for name in file.keys() if lost == "stage" or "0.weight" not in name]  # noqa: SIM118
        kept = {name: file.get_tensor(name) for name in names}
    save_file(kept, tmp_path / "edited", metadata)
    files = CheckpointFiles(
        weights=checkpoints.reader_of(tmp_path / "False"), training=checkpoints.reader_of(tmp_path / "edited")
    )
    with pytest.raises(PipesvcError, match=said):
        Cluster(setup, has_labels=True, files=files)
