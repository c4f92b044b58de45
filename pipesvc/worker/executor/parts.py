"""The programs of a worker's stages, from one build of the model: drawing its numbers takes time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from pipesvc.core.flow import Flow, parameters_of
from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import sequence, skeleton
from pipesvc.worker.executor.program import StageProgram
from pipesvc.worker.executor.replay_program import ReplayProgram
from pipesvc.worker.executor.sequence_program import SequenceProgram, TiedLayers
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.whole_program import WholeProgram
from pipesvc.worker.user_errors import user_error

Build = Callable[[], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """`parameters` are those of the whole model, each once under its first name, others' without values."""

    programs: Sequence[StageProgram]
    parameters: Mapping[str, nn.Parameter]


def make_parts(build: Build, plan: Plan, specs: Sequence[StageSpec], where: Where) -> Parts:
    """A program for each of `specs`, real in its own part only. One stage is built plainly: no skeleton may hold it."""
    try:
        if plan.num_stages == 1:
            program = uncut_program(specs[0], skeleton.whole(build, specs[0].seed), plan.flow)
            return Parts(programs=[program], parameters=program.named_parameters())
        made: dict[int, StageProgram] = {}
        parameters: Mapping[str, nn.Parameter] = {}
        for held in _built_together(plan, specs):
            parts = _parts(build, plan, held)
            made |= zip((spec.index for spec in held), parts.programs, strict=True)
            parameters = parts.parameters
        return Parts(programs=[made[spec.index] for spec in specs], parameters=parameters)
    except PipesvcError:
        raise
    except Exception as cause:
        raise user_error(ErrorCode.BUILD_FAILED, "building the model", cause, where=where) from cause


def _built_together(plan: Plan, specs: Sequence[StageSpec]) -> list[list[StageSpec]]:
    """All of them, but for a tied parameter that two devices hold: as one tensor it would lie on one of them."""
    devices = {spec.index: spec.device for spec in specs}
    held = [{devices[stage] for stage in tie.stages if stage in devices} for tie in plan.ties]
    if all(len(each) < 2 for each in held):
        return [list(specs)]
    return [[spec for spec in specs if spec.device == device] for device in dict.fromkeys(devices.values())]


def _parts(build: Build, plan: Plan, specs: Sequence[StageSpec]) -> Parts:
    own, seed = [plan.stages[spec.index] for spec in specs], specs[0].seed
    if (flow := plan.flow) is not None:
        names = {name for stage in own for name in parameters_of(flow, plan.ends, stage.index)}
        model = skeleton.build_module(build, seed, names)
        replays = [ReplayProgram(spec, model, flow, plan.ends) for spec in specs]
        return Parts(programs=replays, parameters=dict(model.named_parameters()))
    owned = [index for stage in own for index in range(stage.first_layer, stage.end_layer)]
    layers = skeleton.build_layers(build, seed, owned)
    tied = TiedLayers(ties=plan.ties, shared=sequence.shared_parameters(layers))
    programs = [
        _sequence(spec, layers[stage.first_layer : stage.end_layer], tied)
        for spec, stage in zip(specs, own, strict=True)
    ]
    return Parts(programs=programs, parameters=sequence.named_parameters(layers))


def uncut_program(spec: StageSpec, layers: Sequence[sequence.NamedLayer], flow: Flow | None = None) -> StageProgram:
    """Of what `skeleton.whole` gives. A flow, where there is one, tells which modules draw random numbers."""
    name, model = layers[0]
    if name:
        return _sequence(spec, layers)
    return WholeProgram(spec, model.to(spec.device), flow.random_modules if flow is not None else ())


def _sequence(
    spec: StageSpec, layers: Sequence[sequence.NamedLayer], tied: TiedLayers | None = None
) -> SequenceProgram:
    return SequenceProgram(spec, [(name, layer.to(spec.device)) for name, layer in layers], tied)
