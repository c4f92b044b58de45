"""Which unit a parameter counts for: the one at whose position forward uses it first.

Modules do not say. A model's own forward may use a parameter that no unit holds (a position table of the root), or one
of a unit that it calls later or never, and the stage that uses it is the one that must hold it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from pipesvc.core.layer_info import LayerInfo

Positions = Mapping[str, tuple[int, ...]]


class StateSizes:
    """Of a model on meta, in bytes."""

    def __init__(self, model: nn.Module) -> None:
        tables = [module for module in model.modules() if getattr(module, "sparse", False)]
        sparse = {id(each) for table in tables for each in table.parameters(recurse=False)}
        parameters = dict(model.named_parameters())
        self._bytes = {name: each.nbytes for name, each in [*parameters.items(), *model.named_buffers()]}
        self._gradients = {
            name: each.nbytes if each.requires_grad and id(each) not in sparse else 0
            for name, each in parameters.items()
        }

    def with_sizes(
        self, units: Sequence[LayerInfo], parameters: Positions, buffers: Positions
    ) -> tuple[LayerInfo, ...]:
        """The units with what they hold; what nobody uses lies on the first stage, and counts for its first unit."""
        weights, gradients, others = ([0] * max(1, len(units)) for _ in range(3))
        for name, users in parameters.items():
            weights[_first(users)] += self._bytes[name]
            gradients[_first(users)] += self._gradients[name]
        for name, users in buffers.items():
            others[_first(users)] += self._bytes[name]
        sizes = zip(units, weights, gradients, others, strict=False)
        return tuple(
            replace(unit, parameter_bytes=weight, gradient_bytes=gradient, buffer_bytes=other)
            for unit, weight, gradient, other in sizes
        )


def _first(users: Sequence[int]) -> int:
    return max(users[0], 0) if users else 0
