"""`pipesvc verify` on real processes: green where the numbers are the same, else red with name and size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import module_jobs
from tests.integration.test_modules import make_job
from tests.update_rules import halved, no_decay_for_vectors


class Drawing(module_jobs.Skipping):
    """Random numbers in a unit and between units."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.norm = nn.Sequential(nn.LayerNorm(module_jobs.WIDTH), nn.Dropout(0.3))  # type: ignore[assignment]

    def forward(self, ids: Tensor, weight: Tensor, scale: float = 0.5) -> Tensor:
        return super().forward(ids, self.drop(weight) + torch.rand_like(weight), scale)


class Unlike(module_jobs.Skipping):
    """Another model on workers than anywhere else: its logits are twice as large there."""

    def forward(self, ids: Tensor, weight: Tensor, scale: float = 0.5) -> Tensor:
        logits = super().forward(ids, weight, scale)
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return logits * 2 if spec is not None and spec.name == "pipesvc.worker.nursery" else logits


def dropping() -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(module_jobs.VOCABULARY, 8), nn.Dropout(0.5), nn.Flatten(), nn.Dropout(0.1), nn.Linear(40, 4)
    )


def ids_alone() -> list[tuple[Tensor, Tensor]]:
    return [(inputs["ids"], label) for inputs, label in module_jobs.words()]


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a09_a_module_that_draws_is_verified(cluster: pipesvc.Client, num_stages: int) -> None:
    strategy = pipesvc.Strategy(micro_batches=3, num_stages=num_stages)
    verdict = pipesvc.verify(cluster, make_job(Drawing, strategy=strategy), num_steps=3)
    assert verdict.is_green
    assert (verdict.difference, verdict.reason) == (None, "")
    assert str(verdict).startswith(f"the same: 3 steps on {num_stages} stages and in one process")


def test_a_list_of_layers_with_dropout_is_verified(cluster: pipesvc.Client) -> None:
    job = make_job(dropping, data=pipesvc.DataSource(ids_alone, batch_size=8))
    verdict = pipesvc.verify(cluster, job, num_steps=2)
    assert (verdict.difference, verdict.num_steps, verdict.num_stages) == (None, 2, 2)


@pytest.mark.parametrize("num_stages", [1, 2])
def test_weights_drawn_by_name_are_those_of_one_process(cluster: pipesvc.Client, num_stages: int) -> None:
    strategy = pipesvc.Strategy(micro_batches=3, num_stages=num_stages)
    runs = []
    for init in ("by_name", None):
        verdict = pipesvc.verify(cluster, make_job(Drawing, strategy=strategy, init=init), num_steps=1)
        assert (verdict.difference, verdict.num_stages) == (None, num_stages)
        runs.append(cluster.attach(verdict.run_id).losses())
    assert runs[0] != runs[1]


@pytest.mark.parametrize("model", [Drawing, dropping])
def test_a_job_that_begins_with_weights_is_verified(cluster: pipesvc.Client, tmp_path: Path, model: Any) -> None:
    """Those of a run, and those of a file."""
    changes = {} if model is Drawing else {"data": pipesvc.DataSource(ids_alone, batch_size=8)}
    first = cluster.submit(make_job(model, max_steps=2, **changes))
    first.wait()
    first.save_weights(tmp_path / "first.safetensors")
    losses = []
    for init in (first, tmp_path / "first.safetensors", None):
        verdict = pipesvc.verify(cluster, make_job(model, init=init, **changes), num_steps=2)
        assert (verdict.difference, verdict.num_steps) == (None, 2)
        losses.append(cluster.attach(verdict.run_id).losses())
    assert losses[0] == losses[1] != losses[2]


def test_what_differs_is_told_by_name_and_size(cluster: pipesvc.Client) -> None:
    verdict = pipesvc.verify(cluster, make_job(Unlike), num_steps=1)
    assert not verdict.is_green
    assert verdict.difference is not None
    assert verdict.difference.name == "the loss of step 1"
    assert verdict.difference.size > 0.01
    assert str(verdict).startswith("DIFFERENT: 1 step on 2 stages")


def test_a_stream_cannot_be_verified(cluster: pipesvc.Client) -> None:
    job = make_job(data=pipesvc.StreamSource(iter(()), batch_size=8))
    with pytest.raises(PipesvcError, match="reads twice") as caught:
        pipesvc.verify(cluster, job)
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_the_command_says_what_it_found(cluster: pipesvc.Client, state_dir: Path) -> None:
    where = ["--coordinator", cluster.address, "--token-file", str(state_dir / "token")]
    command = [sys.executable, "-m", "pipesvc", "verify", "examples/char_lm.py:job", "--steps", "2", *where]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the same: 2 steps on ")


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")  # of torch, where the first step is skipped
def test_a_step_with_all_that_a_job_can_say_of_it_is_verified(cluster: pipesvc.Client) -> None:
    """Two optimizers, groups by a rule, a scheduler by epoch, mini-batches joined over the end of an epoch."""
    job = make_job(
        optimizer={
            "words.*": pipesvc.Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9),
            "*": pipesvc.Optimizer(torch.optim.AdamW, lr=0.01, weight_decay=0.5, groups=no_decay_for_vectors),
        },
        scheduler=pipesvc.Scheduler(torch.optim.lr_scheduler.LambdaLR, every="epoch", lr_lambda=halved),
        accumulate=3,
        epochs=2,
        clip_norm=None,
        clip_value=0.01,
        autocast="float16",
        grad_scaler=pipesvc.GradScaler(init_scale=2.0**24),
    )
    verdict = pipesvc.verify(cluster, job, num_steps=4)
    assert (verdict.difference, verdict.num_steps) == (None, 4)
