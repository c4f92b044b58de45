"""A stage of a list of layers: each gets what the one before it gives, and only neighbours exchange tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from pipesvc.core import seeds
from pipesvc.core.flow import PARAMETER
from pipesvc.core.ties import Tie, copies_in, gradient_chain
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.replay.boundary import Arrival, admit, run_backward
from pipesvc.model.replay.operations import versions
from pipesvc.model.sequence import SharedBy
from pipesvc.model.tied import TiedGradients
from pipesvc.wire import tree
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.program import Forwarded, Gradients, Parcels, failed, seed_generators
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.units import prepare

# None where the parcel has no tensor.
Arrivals = list[Arrival | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TiedLayers:
    """What a stage shares with others: `ties` are all of the plan's, `shared` those that layers of the stage hold."""

    ties: Sequence[Tie] = ()
    shared: Mapping[str, SharedBy] = field(default_factory=dict)


class SequenceProgram:
    """`layers` with their names in the unsplit model."""

    def __init__(
        self, spec: StageSpec, layers: Sequence[tuple[str, nn.Module]], tied: TiedLayers | None = None
    ) -> None:
        self.layers = tuple(layers)
        self._spec = spec
        tied = tied or TiedLayers()
        self._shared = tied.shared
        ties = [tie for tie in tied.ties if spec.index in tie.stages]
        self._held = {tie.name: self.tied_parameter(tie.name) for tie in ties}
        self._owned = [tie.name for tie in ties if tie.owner == spec.index]
        self._copies = {id(self.tied_parameter(tie.name)) for tie in copies_in(ties, spec.index)}
        trained = {tie.name: tie.stages for tie in ties if tie.is_trained}
        self._tied = TiedGradients(spec.index, trained, self.tied_parameter)
        # Sender or receiver of gradients -> keys of the tied parameters, behind those of the activation.
        chain = gradient_chain(ties)
        self._collects = {later: _keys(names) for (later, earlier), names in chain.items() if earlier == spec.index}
        self._returns = {earlier: _keys(names) for (later, earlier), names in chain.items() if later == spec.index}
        self._places: dict[str, int] = {}
        self._parameters: dict[str, nn.Parameter] = {}
        seen = set(self._copies)
        for index, (layer_name, layer) in enumerate(self.layers, spec.first_layer):
            for name, parameter in layer.named_parameters(prefix=layer_name):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._parameters[name] = parameter
                    self._places[name] = index
        # Other stages, which use the tied ones too, wait for their gradients.
        self.deferral = prepare(spec, dict(self.layers), list(self._tied.parameters.values()))

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._parameters)

    def tied_parameter(self, name: str) -> nn.Parameter:
        return self._shared[name].parameter

    def place_of(self, name: str) -> int:
        return self._places[name]

    def roots(self) -> dict[str, nn.Module]:
        return dict(self.layers)

    def shared_names(self) -> dict[str, nn.Parameter]:
        return {name: shared.parameter for shared in self._shared.values() for name in shared.names}

    def own_modules(self) -> dict[str, nn.Module]:
        return {path: module for name, layer in self.layers for path, module in layer.named_modules(prefix=name)}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, layer in self.layers:
            layer.state_dict(destination=state, prefix=f"{name}.", keep_vars=True)
        state = {name: value for name, value in state.items() if id(value) not in self._copies}
        for first_name in self._owned:
            state |= dict.fromkeys(self._shared[first_name].names, self.tied_parameter(first_name))
        return state

    def forward(self, step: int, micro_batch: int, inputs: Parcels) -> Forwarded:
        """Each layer draws its random numbers by step, micro-batch and its place in the whole model."""
        spec = self._spec
        received, value = self._admit(inputs[spec.index - 1])
        before = versions(self._held.values())
        for index, (name, layer) in enumerate(self.layers, spec.first_layer):
            seed_generators(spec.device, seeds.derive(spec.seed, "forward", step, micro_batch, index))
            try:
                value = layer(value)
            except (Exception, KeyboardInterrupt) as cause:
                doing = f"forward of layer {name!r} ({type(layer).__name__}) on {describe(value)}"
                where = Where(step=step, stage=spec.index, micro_batch=micro_batch)
                raise failed(doing, cause, where) from cause
        if versions(self._held.values()) != before:
            raise self._changed(Where(step=step, stage=spec.index, micro_batch=micro_batch))
        if spec.is_last:
            return Forwarded(outputs={}, result=value, backward=partial(self._backward, received, ()))
        outputs = tuple(tree.flatten(value, _is_tensor)[1])
        return Forwarded(
            outputs={spec.index + 1: value}, result=None, backward=partial(self._backward, received, outputs)
        )

    def _changed(self, where: Where) -> PipesvcError:
        return PipesvcError(
            ErrorCode.STAGE_FAILED,
            f"forward writes to a parameter that several stages use ({', '.join(map(repr, self._held))}), of which "
            "each has a copy",
            advice="Put the layers that share it into one stage, or leave out what writes (max_norm of an embedding?)",
            where=where,
        )

    def _admit(self, parcel: Parcel) -> tuple[Arrivals, Any]:
        """A tensor becomes an autograd leaf where its maker's required a gradient; nobody wants that of the inputs."""
        arrivals = [None if tensor is None else admit(tensor, self._spec.device) for tensor in parcel.as_made()]
        value = tree.unflatten(parcel.structure, [None if each is None else each.entry for each in arrivals])
        return arrivals, value

    def _backward(
        self, received: Arrivals, outputs: Sequence[Tensor], gradients: Parcels, loss: Tensor | None
    ) -> Gradients:
        before, after = self._spec.index - 1, self._spec.index + 1
        places = {str(index): output for index, output in enumerate(outputs)}
        starts: dict[str, Tensor | None] = {}
        for sender, parcel in gradients.items():
            keys = [*(places if sender == after else ()), *self._collects.get(sender, ())]
            starts.update(zip(keys, parcel.leaves, strict=True))
        given = self._tied.taken(partial(run_backward, loss, places | self._tied.gathered, starts))
        own = [None if each is None else each.gradient for each in received]
        found: Gradients = {} if before < 0 else {before: own}
        for receiver, keys in self._returns.items():
            found.setdefault(receiver, []).extend(given[receiver][key] for key in keys)
        return found


def _keys(names: Sequence[str]) -> list[str]:
    return [PARAMETER + name for name in names]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
