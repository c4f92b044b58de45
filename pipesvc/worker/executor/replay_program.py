"""A stage of a module with a forward of its own: replayed, with values straight from their maker to each user.

The order of what crosses is that of the flow, which every process of a run has from the same plan, so a parcel is a
list of tensors and needs no names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core.flow import Flow, gradient_transfers, owned_by, parameters_of, transfers
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.run import Pass, StageReplay
from pipesvc.wire import tree
from pipesvc.wire.links import FEEDER
from pipesvc.worker import absent
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.program import Forwarded, Gradients, Parcels, failed, seed_for_loss
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.units import prepare


class ReplayProgram:
    """`model` may be shared by the stages of a worker; in it, what `parameters_of` gives this stage has values."""

    def __init__(self, spec: StageSpec, model: nn.Module, flow: Flow, ends: Sequence[int]) -> None:
        self._spec = spec
        self._model = model
        self._own = frozenset(owned_by(flow, ends, spec.index))
        self._places = {name: place for place, (name, _) in enumerate(model.named_parameters())}
        _refuse_unknown_state(model)
        _move(model, frozenset(parameters_of(flow, ends, spec.index)), spec.device)
        self.replay = StageReplay(model, flow, ends, spec.index, spec.device, seed=spec.seed)
        part = self.replay.part
        own = {name: unit for name, unit in part.units.items() if part.stage_of[name] == spec.index}
        # Other stages, which use the tied ones too, wait for their gradients.
        self.deferral = prepare(spec, own, list(part.tied.parameters.values()))
        values, gradients = transfers(flow, ends), gradient_transfers(flow, ends)
        self._receives = {maker: keys for (maker, user), keys in values.items() if user == spec.index}
        self._collects = {sender: keys for (sender, receiver), keys in gradients.items() if receiver == spec.index}
        self._returns = {receiver: keys for (sender, receiver), keys in gradients.items() if sender == spec.index}

    def named_parameters(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self._model.named_parameters() if name in self._own}

    def tied_parameter(self, name: str) -> nn.Parameter:
        return self._model.get_parameter(name)

    def place_of(self, name: str) -> int:
        return self._places[name]

    def roots(self) -> dict[str, nn.Module]:
        return {"": self._model}

    def shared_names(self) -> dict[str, nn.Parameter]:
        return {}

    def own_modules(self) -> dict[str, nn.Module]:
        own = {id(each) for name, each in self._model.named_buffers() if name in self._own}
        return {
            path: module
            for path, module in self._model.named_modules()
            if any(id(buffer) in own for buffer in module._buffers.values())
        }

    def state_dict(self) -> dict[str, Any]:
        """What is tied has all its names, as in the state dict of the whole."""
        own = {id(each) for name, each in _named_state(self._model) if name in self._own}
        state = self._model.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if id(value) in own}

    def forward(self, step: int, micro_batch: int, inputs: Parcels) -> Forwarded:
        spec = self._spec
        given = inputs[FEEDER]
        value = absent.with_shapes(tree.unflatten(given.structure, given.leaves))
        received: dict[str, Tensor] = {}
        for maker, keys in self._receives.items():
            made = zip(keys, inputs[maker].as_made(), strict=True)
            received |= {key: tensor for key, tensor in made if tensor is not None}
        try:
            arguments = Inputs(*arguments_of(self._model.forward, value))
            found = self.replay.forward(arguments, received, step=step, micro_batch=micro_batch)
        except (Exception, KeyboardInterrupt) as cause:
            doing = f"forward of {type(self._model).__name__} on {describe(value)}"
            raise failed(doing, cause, Where(step=step, stage=spec.index, micro_batch=micro_batch)) from cause
        if spec.is_last:
            seed_for_loss(spec, step, micro_batch)
        outputs = {consumer: list(values.values()) for consumer, values in found.values.items()}
        result, found.result = found.result, None
        return Forwarded(outputs=outputs, result=result, backward=partial(self._backward, found))

    def _backward(self, found: Pass, gradients: Parcels, loss: Tensor | None) -> Gradients:
        collected: dict[str, Tensor | None] = {}
        for sender, keys in self._collects.items():
            collected.update(zip(keys, gradients[sender].leaves, strict=True))
        returned = found.backward(collected, loss)
        return {receiver: [returned[receiver][key] for key in keys] for receiver, keys in self._returns.items()}


def _named_state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _refuse_unknown_state(model: nn.Module) -> None:
    """What the module makes up for its state dict has no place in the flow, so no stage would save it."""
    known = {id(each) for _, each in _named_state(model)}
    unknown = [name for name, value in model.state_dict(keep_vars=True).items() if id(value) not in known]
    if unknown:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the state {unknown[0]!r} is neither a parameter nor a buffer, so no stage holds it",
            advice="Register it as a buffer, leave it out of get_extra_state(), or run the model as one stage "
            "(pipeline=False)",
        )


def _move(model: nn.Module, names: frozenset[str], device: torch.device) -> None:
    """As `nn.Module.to`, of these parameters and buffers only: the others may be on meta, or another stage's."""
    own = {id(each) for name, each in _named_state(model) if name in names}

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device) if id(tensor) in own else tensor

    model._apply(moved)  # type: ignore[no-untyped-call]
