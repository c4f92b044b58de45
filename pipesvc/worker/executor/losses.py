"""The loss of a micro-batch on the last stage: the user's function, and what must hold of the number that it gives."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.wire import tree
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.program import failed
from pipesvc.worker.executor.spec import StageSpec


def loss_of(spec: StageSpec, output: Any, labels: Parcel | None, share: float, where: Where) -> Tensor:
    """A scalar, which parameters lead to if it counts: of rows that are all masked, it may be a constant."""
    loss = number_of(spec, output, labels, where)
    if share and not loss.requires_grad:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"{_giver(spec)} gave a loss that no trainable parameter leads to",
            advice="Check for detach() and no_grad() on its way, and that some parameter has requires_grad=True",
            where=where,
        )
    return loss


def arguments_of(spec: StageSpec, output: Any, labels: Parcel | None) -> tuple[Any, ...]:
    """What loss and metrics are called with."""
    return (output,) if labels is None else (output, _admitted(labels, spec))


def number_of(spec: StageSpec, output: Any, labels: Parcel | None, where: Where) -> Tensor:
    """The loss as a scalar, whether or not it is trained on."""
    loss = output
    if spec.loss is not None:
        arguments = arguments_of(spec, output, labels)
        try:
            loss = spec.loss(*arguments)
        except (Exception, KeyboardInterrupt) as cause:
            doing = f"the loss function on {', '.join(map(describe, arguments))}"
            raise failed(doing, cause, where) from cause
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"{_giver(spec)} gave {describe(loss)}, not a scalar tensor",
            advice="Return one number as a tensor, such as the mean over the rows",
            where=where,
        )
    return loss


def refuse_not_finite(loss: Tensor, where: Where) -> None:
    if not math.isfinite(loss.item()):
        raise PipesvcError(
            ErrorCode.NON_FINITE_LOSS,
            f"the loss is {loss.item()}",
            advice="Lower the learning rate, clip the gradients (clip_norm=) or look at the data of this batch",
            where=where,
        )


def _giver(spec: StageSpec) -> str:
    return "the last layer, which returns the loss," if spec.loss is None else "the loss function"


def _admitted(labels: Parcel, spec: StageSpec) -> Any:
    leaves = [None if leaf is None else leaf.to(spec.device) for leaf in labels.leaves]
    return tree.unflatten(labels.structure, leaves)
