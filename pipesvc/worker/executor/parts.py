"""The programs of a worker's stages, from one build of the model: drawing its numbers takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


def make_programs(build: Build, plan: Plan, specs: Sequence[StageSpec], where: Where) -> list[StageProgram]:
    """One for each of `specs`, real in its own part only. One stage is built plainly, as no skeleton may hold it."""
    try:
        if plan.num_stages == 1:
            return [uncut_program(specs[0], skeleton.whole(build, specs[0].seed), plan.flow)]
        made: dict[int, StageProgram] = {}
        for held in _built_together(plan, specs):
            made |= zip((spec.index for spec in held), _programs(build, plan, held), strict=True)
        return [made[spec.index] for spec in specs]
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


def _programs(build: Build, plan: Plan, specs: Sequence[StageSpec]) -> list[StageProgram]:
    own, seed = [plan.stages[spec.index] for spec in specs], specs[0].seed
    if (flow := plan.flow) is not None:
        names = {name for stage in own for name in parameters_of(flow, plan.ends, stage.index)}
        model = skeleton.build_module(build, seed, names)
        return [ReplayProgram(spec, model, flow, plan.ends) for spec in specs]
    owned = [index for stage in own for index in range(stage.first_layer, stage.end_layer)]
    layers = skeleton.build_layers(build, seed, owned)
    tied = TiedLayers(ties=plan.ties, shared=sequence.shared_parameters(layers))
    return [
        _sequence(spec, layers[stage.first_layer : stage.end_layer], tied)
        for spec, stage in zip(specs, own, strict=True)
    ]


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
