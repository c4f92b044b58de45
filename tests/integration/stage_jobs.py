"""Jobs with one builder for each stage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import pipesvc
from tests.integration import jobs

BUILT: list[str] = []


class Scaled(nn.Module):
    """Reads a value while it is built, and branches on values in forward: no skeleton, and no replay."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = self.linear.weight.abs().max().item()
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) / self.scale
        return self.drop(y) if y.sum() > 0 else -y


def bottom(width: int = jobs.WIDTH) -> nn.Module:
    BUILT.append("bottom")
    return Scaled(width)


def middle() -> nn.Sequential:
    BUILT.append("middle")
    return nn.Sequential(nn.Linear(jobs.WIDTH, jobs.WIDTH), nn.BatchNorm1d(jobs.WIDTH))


def top() -> nn.Module:
    BUILT.append("top")
    return nn.Linear(jobs.WIDTH, jobs.NUM_CLASSES)


def layers() -> list[nn.Module]:
    return [top()]


_known: dict[str, nn.Module] = {}


def shared() -> nn.Module:
    return _known.setdefault("layer", nn.Linear(jobs.WIDTH, jobs.WIDTH))


def plain_chain(seed: int) -> nn.Sequential:
    """What one process without pipesvc builds."""
    stages = []
    builds: list[Callable[[], nn.Module]] = [bottom, middle, top]
    for index, build in enumerate(builds):
        torch.manual_seed(seed + index)
        stages.append(build())
    return nn.Sequential(*stages)


MODEL = [pipesvc.Call(bottom, width=jobs.WIDTH), middle, top]
