"""A module with a forward of its own on GPUs: skips, a mask, a tied head, dropout and recomputation across devices.

Losses are compared as in `test_gpu`: relative 1e-3, since a GPU adds in another order. Between runs that keep their
devices nothing differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pipesvc
from tests.gpu.test_gpu import close, finish, places

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:workers with different numeric fingerprints")]

VOCABULARY, WIDTH, LENGTH = 64, 32, 12
DEVICES = (("cuda", "cuda"), ("cuda", "cpu", "cuda"))
# float16 rounds at 1e-3, and eight steps of a large rate carry that on.
LOW_PRECISION: dict[str, Any] = {
    "optimizer": pipesvc.Optimizer(torch.optim.AdamW, lr=1e-2, fused=True, groups={"*.bias": {"weight_decay": 0.0}}),
    "scheduler": pipesvc.Scheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.05, total_steps=10),
    "autocast": "float16",
    "grad_scaler": pipesvc.GradScaler(init_scale=1024.0, growth_interval=2),
}


class Block(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(drop))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        y: Tensor = x + self.feed(x)
        return y


class Net(nn.Module):
    """The embedding is used first, in a skip, and as the head."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(drop) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        first = x = self.words(ids)
        mask = torch.triu(torch.full((ids.shape[1], ids.shape[1]), -1e9, device=x.device), 1)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(x + first)
        return logits


def rows() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(64):
        ids = torch.randint(VOCABULARY, (LENGTH + 1,), generator=generator)
        yield ids[:-1], ids[1:]


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def job(cluster: pipesvc.Client, devices: tuple[str, ...], *, drop: float = 0.0, **strategy: Any) -> pipesvc.Job:
    options: dict[str, Any] = {"micro_batches": 4, "num_stages": len(devices), "placement": places(cluster, *devices)}
    return pipesvc.Job(
        model=pipesvc.Call(Net, drop=drop),
        loss=loss,
        optimizer=pipesvc.Optimizer(torch.optim.AdamW, lr=1e-2),
        data=pipesvc.DataSource(rows, batch_size=16),
        strategy=pipesvc.Strategy(**(options | strategy)),
        clip_norm=1.0,
        epochs=2,
        seed=3,
    )


def test_a_tied_module_on_cpu_mixed_and_gpus_agrees(cluster: pipesvc.Client) -> None:
    truth, _ = finish(cluster.submit(job(cluster, ("cpu",), num_stages=None, placement={}, pipeline=False)))
    for devices in (("cpu", "cuda"), ("cuda", "cuda"), ("cuda", "cpu", "cuda")):
        losses, state = finish(cluster.submit(job(cluster, devices)))
        assert close(losses, truth), devices
        assert torch.equal(state["head.weight"], state["words.weight"])


@pytest.mark.parametrize("schedule", ["GPipe", "ZBH1"])
def test_recomputation_keeps_dropout_on_gpus(cluster: pipesvc.Client, schedule: str) -> None:
    kept, _ = finish(cluster.submit(job(cluster, ("cuda", "cuda"), drop=0.2, schedule=schedule)))
    again, _ = finish(cluster.submit(job(cluster, ("cuda", "cuda"), drop=0.2, schedule=schedule, recompute=True)))
    assert close(kept, again)
    without, _ = finish(cluster.submit(job(cluster, ("cuda", "cuda"), schedule=schedule)))
    assert not close(kept, without)


def test_groups_scaler_scheduler_and_a_checkpoint_that_changes_devices(cluster: pipesvc.Client) -> None:
    """Fused on GPUs and on the CPU; the state goes to other devices and another number of stages."""
    near, far = (dataclasses.replace(job(cluster, devices), **LOW_PRECISION) for devices in DEVICES)
    truth, _ = finish(cluster.submit(near))
    begun = cluster.submit(dataclasses.replace(near, max_steps=3))
    first, _ = finish(begun)
    for other in (near, far):
        rest, _ = finish(cluster.submit(dataclasses.replace(other, resume=begun)))
        assert all(abs(a - b) <= 2e-2 * abs(b) for a, b in zip(first + rest, truth, strict=True)), (first + rest, truth)
    fresh, _ = finish(cluster.submit(dataclasses.replace(near, init=begun, max_steps=5)))
    assert any(abs(a - b) > 2e-2 * abs(b) for a, b in zip(fresh, truth[3:], strict=True))
