"""Modules that compute `x @ matrix + bias`, and their gradients as autograd computes them.

`nn.Linear` is known by its own forward, which a subclass may have and a class of the same name may not. transformers'
`Conv1D`, of which many models carry a copy, cannot be imported here; it is known by what it has and by what it gives
for a trial input.

Bits hang on the order of operands and on strides, so each formula is that of torch's derivative, with its two ways for
matrices that lie in memory column by column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# Before user code could put another one there.
_LINEAR_FORWARD: Final = nn.Linear.forward


@dataclass(eq=False, frozen=True, slots=True)
class Affine:
    """`weight` is (outputs, inputs), as in `nn.Linear`, or (inputs, outputs), as in `Conv1D`."""

    module: nn.Module
    weight: nn.Parameter
    bias: nn.Parameter | None
    has_inputs_first: bool

    @property
    def parameters(self) -> tuple[nn.Parameter, nn.Parameter | None]:
        return self.weight, self.bias

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [each for each in self.parameters if each is not None and each.requires_grad]

    def own_forward(self) -> Callable[..., Any]:
        bound: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return bound

    def takes(self, x: Any) -> bool:
        """Whether the formulas are right for this input, and the module's weights are still those."""
        held = self.module._parameters
        return (
            type(x) in (Tensor, nn.Parameter)
            and x.dim() > 0
            and x.layout is torch.strided
            and held.get("weight") is self.weight
            and held.get("bias") is self.bias
        )

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the module computes; `weight` and `bias` may be casts."""
        if not self.has_inputs_first:
            return linear(x, weight, bias)
        assert bias is not None
        return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], weight.shape[1])

    def input_gradient(self, call: AffineCall, weight: Tensor) -> Tensor:
        """In the shape of the input; `weight` may be a cast."""
        rows, g_rows, shape = call.rows, call.g_rows, call.shape
        if len(shape) == 1 and not self.has_inputs_first:
            return weight.t().mv(call.g)
        if rows.stride() == (1, rows.shape[0]):
            matrix = weight if self.has_inputs_first else weight.t()
            return matrix.mm(g_rows.t()).t().reshape(shape)
        found = g_rows.mm(weight.t() if self.has_inputs_first else weight)
        return found if len(shape) == 2 else found.view(shape)

    def gradients(self, call: AffineCall) -> list[tuple[nn.Parameter, Tensor]]:
        """Of weight and bias, those that are trained, in the dtype in which was computed."""
        rows, g_rows = call.rows, call.g_rows
        found = []
        if self.weight.requires_grad:
            found.append((self.weight, rows.t().mm(g_rows) if self.has_inputs_first else g_rows.t().mm(rows)))
        if self.bias is not None and self.bias.requires_grad:
            # torch joins the addition of the bias to a product of matrices, or adds it to the whole.
            g = call.g
            is_joined = self.has_inputs_first or len(call.shape) <= 2 or (len(call.shape) == 3 and call.is_contiguous)
            found.append((self.bias, g_rows.sum(0) if is_joined else g.sum(tuple(range(g.dim() - 1)))))
        return found


class AffineCall:
    """What the backward of one call goes by: input and gradient of the output, as they are and as matrices."""

    __slots__ = ("g", "g_rows", "is_contiguous", "rows", "shape")

    def __init__(self, x: Tensor, g: Tensor) -> None:
        self.shape, self.is_contiguous = x.shape, x.is_contiguous()
        rows = x.detach()
        if rows.dtype is not g.dtype:
            rows = rows.to(g.dtype)  # as autocast did
        self.g = g
        self.rows = rows if rows.dim() == 2 else rows.reshape(-1, rows.shape[-1])
        self.g_rows = g if g.dim() == 2 else g.reshape(-1, g.shape[-1])


def affine_of(module: nn.Module) -> Affine | None:
    """None where the module is no such one, or where more would have to be known of its gradients."""
    if "forward" in module.__dict__ or module._backward_hooks or module._backward_pre_hooks:
        return None
    held = module._parameters
    weight, bias = held.get("weight"), held.get("bias")
    if weight is None or not weight.requires_grad or not held.keys() <= {"weight", "bias"}:
        return None
    if not all(each is None or _is_plain(each) for each in (weight, bias)):
        return None
    if isinstance(module, nn.Linear) and type(module).forward is _LINEAR_FORWARD:
        return Affine(module, weight, bias, has_inputs_first=False)
    if bias is not None and _is_conv1d(module, weight, bias):
        return Affine(module, weight, bias, has_inputs_first=True)
    return None


def _is_plain(parameter: nn.Parameter) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.is_floating_point()
        and parameter.is_contiguous()
        and not parameter._backward_hooks
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


def _is_conv1d(module: nn.Module, weight: nn.Parameter, bias: nn.Parameter) -> bool:
    shapes = weight.dim() == 2 and bias.shape == weight.shape[1:] and getattr(module, "nf", None) == bias.shape[0]
    if not shapes or module._modules or module._buffers or weight.is_meta:
        return False
    x = torch.linspace(-1.0, 1.0, 3 * weight.shape[0], device=weight.device).to(weight.dtype).view(1, 3, -1)
    try:
        with torch.no_grad():
            found = type(module).forward(module, x)
            return torch.equal(found, torch.addmm(bias, x[0], weight).unsqueeze(0))
    except Exception:  # of code that takes something else
        return False
