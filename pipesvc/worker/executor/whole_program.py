"""The only stage of a module with a forward of its own: nothing is cut, so it simply runs, whatever it does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from pipesvc.errors import Where
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay import nest
from pipesvc.model.replay.randomness import Streams
from pipesvc.model.replay.units import units_of
from pipesvc.wire import tree
from pipesvc.wire.links import FEEDER
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.program import Forwarded, Gradients, Parcels, failed, seed_for_loss
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.units import prepare


class WholeProgram:
    """`model` is on the device of the stage.

    `random_modules` are the paths of those that draw random numbers, as far as they are known: they draw what they
    would draw in every other partition.
    """

    def __init__(self, spec: StageSpec, model: nn.Module, random_modules: Collection[str]) -> None:
        self._spec = spec
        self._model = model
        self._streams = Streams(model, random_modules, spec.device)
        self.deferral = prepare(spec, units_of(model) or {"": model})
        self._places = {name: place for place, (name, _) in enumerate(model.named_parameters())}

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._model.named_parameters())

    def tied_parameter(self, name: str) -> nn.Parameter:
        return self._model.get_parameter(name)

    def place_of(self, name: str) -> int:
        return self._places[name]

    def roots(self) -> dict[str, nn.Module]:
        return {"": self._model}

    def shared_names(self) -> dict[str, nn.Parameter]:
        return {}

    def own_modules(self) -> dict[str, nn.Module]:
        return dict(self._model.named_modules())

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._model.state_dict(keep_vars=True)
        return state

    def forward(self, step: int, micro_batch: int, inputs: Parcels) -> Forwarded:
        spec, given = self._spec, inputs[FEEDER]
        value = nest.transform(tree.unflatten(given.structure, given.leaves), self._moved)
        try:
            args, kwargs = arguments_of(self._model.forward, value)
            with self._streams.root(seed=spec.seed, step=step, micro_batch=micro_batch):
                result = self._model(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as cause:
            doing = f"forward of {type(self._model).__name__} on {describe(value)}"
            raise failed(doing, cause, Where(step=step, stage=spec.index, micro_batch=micro_batch)) from cause
        seed_for_loss(spec, step, micro_batch)
        return Forwarded(outputs={}, result=result, backward=_backward)

    def _moved(self, leaf: Any) -> Any:
        return leaf.to(self._spec.device) if isinstance(leaf, Tensor) else leaf


def _backward(gradients: Parcels, loss: Tensor | None) -> Gradients:
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    return {}
