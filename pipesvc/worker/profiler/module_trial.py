"""The units of a module, each run as a stage of its own: how long it computes, and what it keeps.

A unit that is called alone would say too little. Code between units costs as well, values come from units far before,
and what the arguments are, only forward knows. So the flow is cut as finely as it allows, and each piece is run by the
very replay that a run uses, given what the pieces before it have made. Code after a unit counts for that unit. What
forward does before the piece begins is told apart: a stage does it once, however many units it has.

A parameter that several pieces use is updated by the first of them, as in a run, and measured there; its copies are
added where a plan makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from pipesvc.core.flow import PARAMETER, Flow, finest_ends, gradient_transfers, parameters_of, stage_of, transfers
from pipesvc.core.layer_info import LayerInfo
from pipesvc.wire.links import FEEDER
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.optimizing import MakeUpdates, Updates
from pipesvc.worker.executor.parameter_groups import Named
from pipesvc.worker.executor.replay_program import ReplayProgram
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.profiler import kept_bytes
from pipesvc.worker.profiler.layer_trial import (
    STEP,
    Stopwatch,
    at_rest,
    copied,
    time_halves,
    time_passes,
    time_updates,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The units from `first` up to `end`, which no cut parts."""

    index: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceTrial:
    """What was found."""

    forward_s: float
    backward_s: float
    input_backward_s: float
    weight_backward_s: float
    update_s: float
    skip_s: float  # before the piece begins
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int


def pieces_of(flow: Flow) -> tuple[Piece, ...]:
    ends = finest_ends(flow)
    return tuple(Piece(index=i, first=ends[i - 1] if i else 0, end=end) for i, end in enumerate(ends))


def info_of(flow: Flow, piece: Piece) -> LayerInfo:
    """The piece as one layer, by its first unit."""
    held = flow.units[piece.first : piece.end]
    return replace(
        held[0],
        parameter_bytes=sum(unit.parameter_bytes for unit in held),
        buffer_bytes=sum(unit.buffer_bytes for unit in held),
    )


class PieceTrials:
    """On one device, in order, each piece once. `inputs` are all arguments of the model for one micro-batch."""

    def __init__(
        self,
        flow: Flow,
        inputs: Parcel,
        labels: Parcel | None,
        make_updates: MakeUpdates,
        *,
        spec: StageSpec,
        num_micro_batches: int,
        budget_s: float,
    ) -> None:
        """`spec` is that of every piece but for its index."""
        self._flow, self._inputs, self._labels = flow, inputs, labels
        self._make_updates, self._spec = make_updates, spec
        self._num_micro_batches, self._budget_s = num_micro_batches, budget_s
        self._ends = finest_ends(flow)
        self._values: dict[str, Tensor] = {}  # as leaves, with `requires_grad` as their makers had it
        self._carried: frozenset[int] = frozenset()  # storages of values that an earlier piece has counted as kept

    def names_in(self, pieces: Sequence[Piece]) -> set[str]:
        """What a model must hold for these pieces."""
        return {name for piece in pieces for name in parameters_of(self._flow, self._ends, piece.index)}

    def measure(self, piece: Piece, model: nn.Module) -> PieceTrial:
        """Within about the budget, or with one repeat where that takes longer; gradients are gone afterwards."""
        spec = replace(self._spec, index=piece.index)
        program = ReplayProgram(spec, model, self._flow, self._ends)

        def make(own: Named) -> Updates:
            return at_rest(self._make_updates(own))

        stage = Stage(spec, program, make)
        inputs = self._received(piece.index)
        fresh = {sender: copied(parcel) for sender, parcel in inputs.items()}
        labels = self._labels if spec.is_last else None
        with kept_bytes.watching_saves(model) as saved:
            self._keep(piece.index, stage.forward(STEP, 0, inputs, labels))
        gradients = self._gradients(piece.index, program)
        stage.backward(STEP, 0, gradients, 1.0)
        gradient_bytes = kept_bytes.gradient_bytes(stage.trainable, self._num_micro_batches)
        update_s = time_updates(stage, self._budget_s / 5)
        watch = Stopwatch(spec.device)
        program.replay.on_begin = watch.begin
        given = fresh, labels, gradients, self._num_micro_batches, self._budget_s / 2
        forward_s, backward_s, _ = time_passes(stage, *given, watch)
        split = replace(spec, splits_backward=True)
        program = ReplayProgram(split, model, self._flow, self._ends)
        program.replay.on_begin = watch.begin
        halves_s = time_halves(Stage(split, program, make), program.deferral, *given, watch) or (backward_s, 0.0)
        for parameter in stage.trainable:
            parameter.grad = None
        found = PieceTrial(
            forward_s=forward_s,
            backward_s=backward_s,
            input_backward_s=halves_s[0],
            weight_backward_s=halves_s[1],
            update_s=update_s,
            skip_s=watch.skip_s,
            gradient_bytes=gradient_bytes,
            optimizer_bytes=kept_bytes.optimizer_bytes(stage.updates.optimizers.values()),
            activation_bytes=sum(size for storage, size in saved.items() if storage not in self._carried),
        )
        self._forget(piece.index, saved.keys() | self._carried)
        return found

    def _received(self, index: int) -> dict[int, Parcel]:
        found = {FEEDER: copied(self._inputs)}
        for (maker, user), keys in transfers(self._flow, self._ends).items():
            if user == index:
                found[maker] = _parcel([self._values[key] for key in keys])
        return found

    def _keep(self, index: int, outputs: Mapping[int, Any]) -> None:
        for (maker, user), keys in transfers(self._flow, self._ends).items():
            if maker == index:
                for key, tensor in zip(keys, outputs[user], strict=True):
                    self._values[key] = tensor.detach().requires_grad_(tensor.requires_grad)

    def _gradients(self, index: int, program: ReplayProgram) -> dict[int, Parcel]:
        """A value serves as its own gradient, and so does a parameter that later pieces use."""
        found = {}
        for (sender, receiver), keys in gradient_transfers(self._flow, self._ends).items():
            if receiver == index:
                values = [self._value(key, program) for key in keys]
                found[sender] = _parcel([each.detach().clone() if each.requires_grad else None for each in values])
        return found

    def _value(self, key: str, program: ReplayProgram) -> Tensor:
        if key.startswith(PARAMETER):
            return program.tied_parameter(key.removeprefix(PARAMETER))
        return self._values[key]

    def _forget(self, index: int, kept: Collection[int]) -> None:
        """Values that no later piece uses. Of the others, those that are kept here are counted."""
        users = {value.key: stage_of(self._ends, value.users[-1]) for value in self._flow.values}
        self._values = {key: value for key, value in self._values.items() if users[key] > index}
        storages = {kept_bytes.storage_of(value) for value in self._values.values()}
        self._carried = frozenset(storage for storage in kept if storage in storages)


def _parcel(values: Sequence[Tensor | None]) -> Parcel:
    """As it would come from a stage of the same process."""
    requires_grad = tuple(each is not None and each.requires_grad for each in values)
    return Parcel(leaves=tuple(values), requires_grad=requires_grad, structure="", is_local=True)
