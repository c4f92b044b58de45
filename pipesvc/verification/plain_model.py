"""The whole model of a job in this process, with the seeds of a run at the places that draw random numbers.

In a pipeline no generator is simply used on, or a module would draw other numbers as soon as it lay on another stage.
So the seeds are a part of what a run computes, and a plain run that is to be compared with it sets them too, by hooks:
the modules themselves run as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from pipesvc.core import seeds
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay.randomness import Streams
from pipesvc.model.sequence import NamedLayer

_CPU: Final = torch.device("cpu")


class PlainModel(Protocol):
    """What the plain loop trains."""

    def state(self) -> dict[str, Tensor]:
        """By the names of a run's weights, in the model's order."""

    def output(self, inputs: Any, *, step: int, micro_batch: int) -> Any: ...


def plain_model(layers: Sequence[NamedLayer], seed: int, random_modules: Collection[str]) -> PlainModel:
    """Of what `skeleton.whole` gives: a list of layers, or one module without a name."""
    name, module = layers[0]
    return _Chain(layers, seed) if name else _Module(module, seed, random_modules)


class _Chain:
    """Layers one after another; each is seeded by its place."""

    def __init__(self, layers: Sequence[NamedLayer], seed: int) -> None:
        self._layers = layers
        self._seed = seed

    def state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, layer in self._layers:
            layer.state_dict(destination=state, prefix=f"{name}.")
        return state

    def output(self, inputs: Any, *, step: int, micro_batch: int) -> Any:
        value = inputs
        for index, (_, layer) in enumerate(self._layers):
            torch.manual_seed(seeds.derive(self._seed, "forward", step, micro_batch, index))
            value = layer(value)
        return value


class _Module:
    """A module with a forward of its own; each of its modules that draws is seeded by its path."""

    def __init__(self, module: nn.Module, seed: int, random_modules: Collection[str]) -> None:
        self._seed = seed
        self._streams = Streams(module, random_modules, _CPU)
        self._module = module

    def state(self) -> dict[str, Tensor]:
        return dict(self._module.state_dict())

    def output(self, inputs: Any, *, step: int, micro_batch: int) -> Any:
        args, kwargs = arguments_of(self._module.forward, inputs)
        with self._streams.root(seed=self._seed, step=step, micro_batch=micro_batch):
            result = self._module(*args, **kwargs)
        torch.manual_seed(seeds.derive(self._seed, "loss", step, micro_batch))
        return result
