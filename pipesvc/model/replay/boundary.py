"""Where autograd's graph begins and ends in a stage.

Gradients must be added in the order of one process (see `core.flow.gradient_transfers`), so a gradient that other
stages made so far is given to the engine as a root at the tensor itself: a root is the first summand of a tensor's
gradient, and the uses in this stage follow, latest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class _Boundary(torch.autograd.Function):
    """The identity between a received leaf and its first use: autograd refuses in-place operations on a leaf.

    It also takes the gradient out of the graph: `leaf.grad` would lay it as the leaf is laid, and other strides give
    other bits in the stages before.
    """

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, gradients: list[Tensor]) -> Tensor:
        ctx.gradients = gradients
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.gradients.append(gradients[0])
        return None, None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A received tensor: what forward uses, and the gradient of it, once there is one."""

    entry: Tensor
    gradients: list[Tensor]

    @property
    def gradient(self) -> Tensor | None:
        """Of all uses in this stage; None: it wants none, or got none."""
        return self.gradients[0] if self.gradients else None


def admit(tensor: Tensor, device: torch.device) -> Arrival:
    """`tensor.requires_grad` says whether the stage that made it wants a gradient."""
    here = tensor.detach().to(device)
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return Arrival(here, [])
    gradients: list[Tensor] = []
    entry: Tensor = _Boundary.apply(here.requires_grad_(), gradients)  # type: ignore[no-untyped-call]
    return Arrival(entry, gradients)


def run_backward(loss: Tensor | None, places: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]) -> None:
    """From the loss and from each place for which a gradient came."""
    roots: list[Tensor] = []
    starts: list[Tensor | None] = []
    if loss is not None:
        roots.append(loss)
        starts.append(None)
    for key, place in places.items():
        gradient = gradients.get(key)
        if gradient is not None and place.requires_grad:
            roots.append(place)
            starts.append(gradient.to(place.device))
    if roots:
        torch.autograd.backward(roots, starts)
