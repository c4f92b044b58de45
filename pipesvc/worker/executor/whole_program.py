"""The only stage of a module with a forward of its own: nothing is cut, so it simply runs, whatever it does."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pipesvc.core import seeds
from pipesvc.errors import Where
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay import nest
from pipesvc.wire import tree
from pipesvc.wire.links import FEEDER
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.program import Forwarded, Gradients, Parcels, failed, seed_generators
from pipesvc.worker.executor.spec import StageSpec


class WholeProgram:
    """`model` is on the device of the stage."""

    def __init__(self, spec: StageSpec, model: nn.Module) -> None:
        self._spec = spec
        self._model = model
        self._places = {name: place for place, (name, _) in enumerate(model.named_parameters())}

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._model.named_parameters())

    def place_of(self, name: str) -> int:
        return self._places[name]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._model.state_dict(keep_vars=True)
        return state

    def forward(self, step: int, micro_batch: int, inputs: Parcels) -> Forwarded:
        spec, given = self._spec, inputs[FEEDER]
        value = nest.transform(tree.unflatten(given.structure, given.leaves), self._moved)
        seed_generators(spec.device, seeds.derive(spec.seed, "forward", step, micro_batch, 0))
        try:
            args, kwargs = arguments_of(self._model.forward, value)
            result = self._model(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as cause:
            doing = f"forward of {type(self._model).__name__} on {describe(value)}"
            raise failed(doing, cause, Where(step=step, stage=spec.index, micro_batch=micro_batch)) from cause
        return Forwarded(outputs={}, result=result, backward=_backward)

    def _moved(self, leaf: Any) -> Any:
        return leaf.to(self._spec.device) if isinstance(leaf, Tensor) else leaf


def _backward(gradients: Parcels, loss: Tensor | None) -> Gradients:
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    return {}
