"""Three models of different shape for `prediction`: equal blocks between unequal ends, wide layers with large
boundaries, and convolutions whose costs fall from layer to layer.

Apart from the measuring, because this file travels to the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pipesvc
from benchmarks import gpt

NUM_STEPS: Final = 8
NUM_CLASSES: Final = 10
WIDTH: Final = 2048


def wide() -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, NUM_CLASSES))


def convolutions() -> nn.Sequential:
    """On (b, 3, 32, 32)."""
    layers: list[nn.Module] = []
    channels = 3
    for width, halves in ((32, False), (32, True), (64, False), (64, True), (128, False), (128, True)):
        layers.append(nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()))
        if halves:
            layers.append(nn.MaxPool2d(2))
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, NUM_CLASSES))


def random_batches(num_rows: int, shape: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same batch for ever, so that the source costs nothing."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num_rows, *shape, generator=generator)
    labels = torch.randint(NUM_CLASSES, (num_rows,), generator=generator)
    while True:
        yield inputs, labels


def _job(model: pipesvc.Call, loss: Any, source: pipesvc.Call) -> pipesvc.Job:
    return pipesvc.Job(
        model=model,
        loss=loss,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.01),
        data=pipesvc.DataSource(source, yields="batch"),
        strategy=pipesvc.Strategy(micro_batches=4),
        max_steps=NUM_STEPS,
    )


_GPT: Final[dict[str, int]] = {"vocabulary": 2048, "width": 256, "num_heads": 4, "num_blocks": 6, "context": 128}

JOBS: Final = {
    "GPT": _job(
        pipesvc.Call(gpt.build_model, **_GPT),
        gpt.token_loss,
        pipesvc.Call(gpt.same_batch_for_ever, num_rows=16, context=128, vocabulary=2048, seed=1),
    ),
    "wide": _job(pipesvc.Call(wide), cross_entropy, pipesvc.Call(random_batches, num_rows=256, shape=[WIDTH])),
    "convolutions": _job(
        pipesvc.Call(convolutions), cross_entropy, pipesvc.Call(random_batches, num_rows=256, shape=[3, 32, 32])
    ),
}
