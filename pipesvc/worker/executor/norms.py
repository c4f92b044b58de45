"""Clipping by the norm over all stages, with the bits of `torch.nn.utils.clip_grad_norm_` on the unsplit model.

The sum of the stages' squared norms is the same number on paper, but not in float32: it differs in about one case of
ten. So each stage sends the norm of every parameter, stage 0 lines them up in model order and takes the norm of that
vector, which is what torch does, and answers with the coefficient that torch would multiply by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

# Of torch.nn.utils.clip_grad: keeps the coefficient finite where the norm is 0.
_EPSILON: Final = 1e-6


def parameter_norms(parameters: Iterable[torch.nn.Parameter]) -> Tensor | None:
    """The gradient norm of each parameter that has a gradient, in order, on the CPU; None if none has."""
    norms = [torch.linalg.vector_norm(each.grad, 2.0) for each in parameters if each.grad is not None]
    return torch.stack(norms).cpu() if norms else None


def coefficient(stage_norms: Sequence[Tensor | None], max_norm: float) -> Tensor:
    """What to multiply every gradient by; `stage_norms` is in stage order."""
    known = [each for each in stage_norms if each is not None]
    if not known:
        return torch.ones(())
    total = torch.linalg.vector_norm(torch.cat(known), 2.0)
    return torch.clamp(max_norm / (total + _EPSILON), max=1.0)


def scale_gradients(parameters: Iterable[torch.nn.Parameter], scale: Tensor) -> None:
    """Multiplied also by 1.0, as torch does: no branch that would have to read the value back from a GPU."""
    for each in parameters:
        if each.grad is not None:
            each.grad.mul_(scale.to(each.grad.device))
