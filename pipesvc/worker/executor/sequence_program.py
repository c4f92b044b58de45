"""A stage of a list of layers: each gets what the one before it gives, and only neighbours exchange tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core import seeds
from pipesvc.errors import Where
from pipesvc.model.replay.boundary import admit
from pipesvc.wire import tree
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.program import Forwarded, Gradients, Parcels, failed, seed_generators
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.units import prepare

# None where the tensor wants no gradient.
Leaves = tuple[Tensor | None, ...]


class SequenceProgram:
    """`layers` with their names in the unsplit model."""

    def __init__(self, spec: StageSpec, layers: Sequence[tuple[str, nn.Module]]) -> None:
        self.layers = tuple(layers)
        self._spec = spec
        self._places: dict[str, int] = {}
        self._parameters: dict[str, nn.Parameter] = {}
        seen: set[int] = set()
        for index, (layer_name, layer) in enumerate(self.layers, spec.first_layer):
            for name, parameter in layer.named_parameters(prefix=layer_name):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._parameters[name] = parameter
                    self._places[name] = index
        self.deferral = prepare(spec, dict(self.layers))

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._parameters)

    def place_of(self, name: str) -> int:
        return self._places[name]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, layer in self.layers:
            layer.state_dict(destination=state, prefix=f"{name}.", keep_vars=True)
        return state

    def forward(self, step: int, micro_batch: int, inputs: Parcels) -> Forwarded:
        """Each layer draws its random numbers by step, micro-batch and its place in the whole model."""
        spec = self._spec
        received, value = self._admit(inputs[spec.index - 1])
        for index, (name, layer) in enumerate(self.layers, spec.first_layer):
            seed_generators(spec.device, seeds.derive(spec.seed, "forward", step, micro_batch, index))
            try:
                value = layer(value)
            except (Exception, KeyboardInterrupt) as cause:
                doing = f"forward of layer {name!r} ({type(layer).__name__}) on {describe(value)}"
                where = Where(step=step, stage=spec.index, micro_batch=micro_batch)
                raise failed(doing, cause, where) from cause
        if spec.is_last:
            return Forwarded(outputs={}, result=value, backward=partial(self._backward, received, ()))
        outputs = tuple(tree.flatten(value, _is_tensor)[1])
        return Forwarded(
            outputs={spec.index + 1: value}, result=None, backward=partial(self._backward, received, outputs)
        )

    def _admit(self, parcel: Parcel) -> tuple[Leaves, Any]:
        """A tensor becomes an autograd leaf where its maker's required a gradient; nobody wants that of the inputs."""
        arrivals = [None if tensor is None else admit(tensor, self._spec.device) for tensor in parcel.as_made()]
        leaves = tuple(None if each is None else each.leaf for each in arrivals)
        return leaves, tree.unflatten(parcel.structure, [None if each is None else each.entry for each in arrivals])

    def _backward(
        self, received: Leaves, outputs: Sequence[Tensor], gradients: Parcels, loss: Tensor | None
    ) -> Gradients:
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        for parcel in gradients.values():
            pairs = [
                (output, gradient.to(self._spec.device))
                for output, gradient in zip(outputs, parcel.leaves, strict=True)
                if gradient is not None and output.requires_grad
            ]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        if self._spec.index == 0:
            return {}
        return {self._spec.index - 1: [None if leaf is None else leaf.grad for leaf in received]}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
