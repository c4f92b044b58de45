"""Clipping, by the norm over all stages with the bits of `torch.nn.utils.clip_grad_norm_` on the unsplit model, and by
single values.

The sum of the stages' squared norms is the same number on paper, but not in float32: it differs in about one case of
ten. So each stage sends the norm of every parameter, stage 0 lines them up in model order and takes the norm of that
vector, which is what torch does, and answers with the coefficient that torch would multiply by.

torch refuses sparse gradients here. What they stand for is clear: rows that came several times are added (coalesced),
rows that did not come are 0. So the norm is that of the rows, which is that of the dense gradient to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

# Of torch.nn.utils.clip_grad: keeps the coefficient finite where the norm is 0.
_EPSILON: Final = 1e-6


def parameter_norms(parameters: Sequence[torch.nn.Parameter], places: Sequence[int]) -> list[Tensor] | None:
    """The gradient norm of each parameter that has a gradient, and the places of these in the model; on the CPU.

    None if none has. A place is equal for parameters of which the order is that of the stages, and in it.
    """
    known = [(_rows(each), place) for each, place in zip(parameters, places, strict=True) if each.grad is not None]
    if not known:
        return None
    norms = torch.stack([torch.linalg.vector_norm(grad, 2.0) for grad, _ in known]).cpu()
    return [norms, torch.tensor([place for _, place in known])]


def coefficient(stage_norms: Iterable[Sequence[Tensor | None]], max_norm: float) -> Tensor:
    """What to multiply every gradient by; `stage_norms` is in stage order, and empty for a stage without gradients."""
    known = [(norms, places) for norms, places in filter(None, stage_norms) if norms is not None and places is not None]
    if not known:
        return torch.ones(())
    norms, places = (torch.cat(part) for part in zip(*known, strict=True))
    total = torch.linalg.vector_norm(norms[torch.argsort(places, stable=True)], 2.0)
    return torch.clamp(max_norm / (total + _EPSILON), max=1.0)


def scale_gradients(parameters: Iterable[torch.nn.Parameter], scale: Tensor) -> None:
    """Multiplied also by 1.0, as torch does: no branch that would have to read the value back from a GPU."""
    for each in parameters:
        if each.grad is not None:
            each.grad.mul_(scale.to(each.grad.device))


def clip_values(parameters: Iterable[torch.nn.Parameter], bound: float) -> None:
    """As `torch.nn.utils.clip_grad_value_`."""
    for each in parameters:
        if each.grad is not None:
            _rows(each).clamp_(-bound, bound)


def _rows(parameter: torch.nn.Parameter) -> Tensor:
    """The gradient, or of a sparse one the rows that are there, each once; it is coalesced in its place."""
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad.values()
