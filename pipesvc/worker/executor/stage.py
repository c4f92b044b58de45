"""One stage: its layers, its optimizer and the micro-batches that are alive on it.

The numbers must be those of the unsplit model, so a stage does what one process would do between two of its layers,
and no more: a received tensor becomes an autograd leaf when the producer's tensor required a gradient, backward
starts from the gradient that comes back, gradients add up in ascending micro-batch order, and each layer's random
numbers are seeded by step, micro-batch and the layer's place in the whole model, never by what this process drew
before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core import seeds
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.wire import tree
from pipesvc.worker.executor import norms
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.user_errors import user_error


class _Boundary(torch.autograd.Function):
    """The identity between a received leaf and the first layer: autograd refuses in-place operations on a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """What a stage is, apart from its layers. `loss` is None when the last layer returns the loss."""

    index: int
    num_stages: int
    first_layer: int
    device: torch.device
    seed: int
    loss: Callable[..., Any] | None
    check_finite: bool

    @property
    def is_last(self) -> bool:
        return self.index == self.num_stages - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Live:
    """A micro-batch between its forward and its backward. `received` has None for a leaf that wants no gradient."""

    received: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]


class Stage:
    """Called by the runtime in the order of the schedule."""

    def __init__(
        self,
        spec: StageSpec,
        layers: Sequence[tuple[str, nn.Module]],
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.spec = spec
        self.layers = tuple(layers)
        self.trainable = [each for each in self.named_parameters().values() if each.requires_grad]
        # An optimizer refuses an empty list, and a stage without parameters has nothing to update.
        self._optimizer = make_optimizer(self.trainable) if self.trainable else None
        self._live: dict[int, _Live] = {}
        # Micro-batches between I and W, which count as alive.
        self._half_done: set[int] = set()
        self._losses: dict[int, Tensor] = {}

    @property
    def num_live(self) -> int:
        return len(self._live) + len(self._half_done)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Each parameter once, under its first name in the unsplit model's state dict."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for layer_name, layer in self.layers:
            for name, parameter in layer.named_parameters(prefix=layer_name):
                found.setdefault(id(parameter), (name, parameter))
        return dict(found.values())

    def forward(self, step: int, micro_batch: int, inputs: Parcel, labels: Parcel | None) -> Any:
        """The output for the next stage; on the last stage the loss is kept here and nothing is given."""
        where = Where(step=step, stage=self.spec.index, micro_batch=micro_batch)
        received, value = self._admit(inputs)
        for index, (name, layer) in enumerate(self.layers, self.spec.first_layer):
            self._seed(seeds.derive(self.spec.seed, "forward", step, micro_batch, index))
            try:
                value = layer(value)
            except (Exception, KeyboardInterrupt) as cause:
                doing = f"forward of layer {name!r} ({type(layer).__name__}) on {describe(value)}"
                raise _failed(doing, cause, where) from cause
        if self.spec.is_last:
            loss = self._loss_of(value, labels, where)
            self._losses[micro_batch] = loss.detach()
            self._live[micro_batch] = _Live(received=received, outputs=(loss,))
            return None
        _, outputs = tree.flatten(value, _is_tensor)
        self._live[micro_batch] = _Live(received=received, outputs=tuple(outputs))
        return value

    def backward(self, step: int, micro_batch: int, gradients: Parcel | None, share: float) -> list[Tensor | None]:
        """The gradient of each received leaf. `gradients` come from the next stage; the last begins with its loss."""
        live = self._live.pop(micro_batch)
        where = Where(step=step, stage=self.spec.index, micro_batch=micro_batch)
        if gradients is None and share == 0:
            # All masked. It counts as nothing, also where its loss is 0 / 0: `0 * nan` would spoil all weights.
            return [None] * len(live.received)
        if gradients is None and self.spec.check_finite:
            _refuse_not_finite(live.outputs[0], where)
        try:
            if gradients is None:
                (live.outputs[0] * share).backward()  # type: ignore[no-untyped-call]
            else:
                self._backward_from(live.outputs, gradients)
        except (Exception, KeyboardInterrupt) as cause:
            raise _failed("backward", cause, where) from cause
        return [None if leaf is None else leaf.grad for leaf in live.received]

    def input_backward(
        self, step: int, micro_batch: int, gradients: Parcel | None, share: float
    ) -> list[Tensor | None]:
        """The whole backward, for now: it is not split yet."""
        self._half_done.add(micro_batch)
        return self.backward(step, micro_batch, gradients, share)

    def weight_backward(self, micro_batch: int) -> None:
        """Nothing is left to compute; the micro-batch counts as alive until here, as it will when there is."""
        self._half_done.remove(micro_batch)

    def parameter_norms(self) -> Tensor | None:
        return norms.parameter_norms(self.trainable)

    def update(self, step: int, scale: Tensor | None) -> None:
        """Apply the step once; the gradients are gone afterwards."""
        if scale is not None:
            norms.scale_gradients(self.trainable, scale)
        if self._optimizer is not None:
            try:
                self._optimizer.step()
            except (Exception, KeyboardInterrupt) as cause:
                doing = f"update with {type(self._optimizer).__name__}"
                where = Where(step=step, stage=self.spec.index)
                raise _failed(doing, cause, where) from cause
            self._optimizer.zero_grad(set_to_none=True)

    def take_loss(self, shares: Sequence[float]) -> float | None:
        """The step's loss, the shares of its micro-batches added in ascending order; None but on the last stage."""
        if not self.spec.is_last:
            return None
        total = 0.0
        for micro_batch, share in enumerate(shares):
            if share:
                total += share * self._losses[micro_batch].item()
        self._losses.clear()
        return total

    def state_dict(self) -> Mapping[str, Any]:
        """By the names of the unsplit model."""
        state: dict[str, Any] = {}
        for name, layer in self.layers:
            layer.state_dict(destination=state, prefix=f"{name}.", keep_vars=True)
        return state

    def _seed(self, seed: int) -> None:
        """The draws of `torch.manual_seed`, which takes 1 ms where CUDA is not in use: it formats a stack trace and
        keeps it, for a later seeding of GPUs."""
        torch.default_generator.manual_seed(seed)
        if self.spec.device.type == "cuda":
            with torch.cuda.device(self.spec.device):
                torch.cuda.manual_seed(seed)

    def _admit(self, parcel: Parcel) -> tuple[tuple[Tensor | None, ...], Any]:
        received: list[Tensor | None] = []
        leaves: list[Tensor | None] = []
        for leaf, requires_grad in zip(parcel.leaves, parcel.requires_grad, strict=True):
            tensor = None if leaf is None else leaf.to(self.spec.device)
            if tensor is None or not requires_grad or self.spec.index == 0:
                received.append(None)
                leaves.append(tensor)
                continue
            tensor = tensor.detach().requires_grad_()
            received.append(tensor)
            leaves.append(_Boundary.apply(tensor))  # type: ignore[no-untyped-call]
        return tuple(received), tree.unflatten(parcel.structure, leaves)

    def _loss_of(self, output: Any, labels: Parcel | None, where: Where) -> Tensor:
        loss = output
        if self.spec.loss is not None:
            arguments = (output,) if labels is None else (output, self._admit_labels(labels))
            try:
                loss = self.spec.loss(*arguments)
            except (Exception, KeyboardInterrupt) as cause:
                doing = f"the loss function on {', '.join(map(describe, arguments))}"
                raise _failed(doing, cause, where) from cause
        giver = "the last layer, which returns the loss," if self.spec.loss is None else "the loss function"
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"{giver} gave {describe(loss)}, not a scalar tensor",
                advice="Return one number as a tensor, such as the mean over the rows",
                where=where,
            )
        if not loss.requires_grad:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"{giver} gave a loss that no trainable parameter leads to",
                advice="Check for detach() and no_grad() on its way, and that some parameter has requires_grad=True",
                where=where,
            )
        return loss

    def _admit_labels(self, labels: Parcel) -> Any:
        leaves = [None if leaf is None else leaf.to(self.spec.device) for leaf in labels.leaves]
        return tree.unflatten(labels.structure, leaves)

    def _backward_from(self, outputs: Sequence[Tensor], gradients: Parcel) -> None:
        pairs = [
            (output, gradient.to(self.spec.device))
            for output, gradient in zip(outputs, gradients.leaves, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def _refuse_not_finite(loss: Tensor, where: Where) -> None:
    if not math.isfinite(loss.item()):
        raise PipesvcError(
            ErrorCode.NON_FINITE_LOSS,
            f"the loss is {loss.item()}",
            advice="Lower the learning rate, clip the gradients (clip_norm=) or look at the data of this batch",
            where=where,
        )


def _failed(doing: str, cause: BaseException, where: Where) -> PipesvcError:
    return user_error(ErrorCode.STAGE_FAILED, doing, cause, where=where)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
