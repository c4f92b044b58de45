"""How much state an optimizer will keep, found by a step over stand-ins before anything is measured.

A plan that forgets the state of Adam fits on paper and dies in its first update. What a class keeps stands in no
attribute, so it is asked to update small parameters, and what it keeps more for a larger one is taken for what it keeps
for each byte. Some keep less for a matrix than for a vector, so the least that was found is what is said: a run is
refused for what it needs at least.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from pipesvc.worker.profiler.kept_bytes import num_bytes, optimizer_bytes

_log = logging.getLogger("pipesvc.inspector")

# Smaller and larger parameters of one kind. Above 4096 elements, below which optimizers of 8 bits keep 32.
_SHAPES: Final = (((8192,), (16384,)), ((64, 128), (128, 128)), ((64, 32, 4), (64, 32, 8)))


def state_per_gradient(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> float:
    """Bytes of state for each byte of gradients, at least; 0 where it cannot be found out this way."""
    found = []
    for smaller, larger in _SHAPES:
        try:
            sizes = [_kept(make, shape) for shape in (smaller, larger)]
        except Exception as error:  # of any optimizer, for any reason: the run itself will tell
            _log.info("the state of the optimizer was not measured for %s: %s", smaller, error)
            continue
        found.append((sizes[1][0] - sizes[0][0]) / (sizes[1][1] - sizes[0][1]))
    return max(0.0, min(found, default=0.0))


def _kept(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], shape: tuple[int, ...]) -> tuple[int, int]:
    """Bytes of state, and of gradients."""
    parameter = nn.Parameter(torch.zeros(shape))
    parameter.grad = torch.zeros(shape)
    optimizer = make([parameter])
    optimizer.step()
    return optimizer_bytes([optimizer]), num_bytes([parameter.grad])
