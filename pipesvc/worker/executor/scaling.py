"""The scale of the loss in float16, with the semantics and the bits of `torch.amp.GradScaler` on the unsplit model.

A GradScaler on each stage would decide for itself: a gradient that overflows on one stage would be skipped there and
applied on all others. So its parts are taken apart. The last stage scales the loss, each stage unscales its gradients
and says of which optimizers one is not finite, and stage 0 decides for all (`deciding`). As behind torch's scaler, an
optimizer without such a gradient updates, but not where one norm clips all: it would be multiplied by NaN or 0. The
arithmetic is torch's: a scale is a float32 number, and so is its reciprocal, which is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from ctypes import c_float
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalerSettings:
    """As the arguments of `torch.amp.GradScaler`."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScale:
    """`num_good` steps in a row were applied with this scale."""

    value: float
    num_good: int = 0


def first_scale(settings: ScalerSettings) -> LossScale:
    return LossScale(value=c_float(settings.init_scale).value)


def next_scale(scale: LossScale, settings: ScalerSettings, *, overflowed: bool) -> LossScale:
    """After a step. A scale that would become infinite stays as it is."""
    if overflowed:
        return LossScale(value=c_float(scale.value * settings.backoff_factor).value)
    if scale.num_good + 1 < settings.growth_interval:
        return LossScale(value=scale.value, num_good=scale.num_good + 1)
    grown = c_float(scale.value * settings.growth_factor).value
    return LossScale(value=grown if math.isfinite(grown) else scale.value)


def scaled(loss: Tensor, scale: float) -> Tensor:
    """Times a float32 tensor, so that a loss in float16 becomes one in float32 before it could overflow."""
    return loss * torch.full((), scale, dtype=torch.float32, device=loss.device)


def unscale(parameters: Iterable[nn.Parameter], scale: float) -> bool:
    """Divide all gradients; True if one of them is not finite."""
    inverse = c_float(1.0 / scale).value if scale else math.inf
    overflowed = False
    for each in parameters:
        if each.grad is not None:
            values = each.grad._values() if each.grad.is_sparse else each.grad
            overflowed |= not bool(torch.isfinite(values).all())
            values.mul_(inverse)
    return overflowed
