"""The programs of a worker's stages, from one build of the model: drawing its numbers takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipesvc.core.flow import Flow, parameters_of
from pipesvc.core.plan import Plan, StagePlan
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import sequence, skeleton
from pipesvc.worker.executor.program import StageProgram
from pipesvc.worker.executor.replay_program import ReplayProgram
from pipesvc.worker.executor.sequence_program import SequenceProgram
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.whole_program import WholeProgram
from pipesvc.worker.user_errors import user_error

Build = Callable[[], Any]


def make_programs(build: Build, plan: Plan, specs: Sequence[StageSpec], where: Where) -> list[StageProgram]:
    """One for each of `specs`, real in its own part only. One stage is built plainly, as no skeleton may hold it."""
    own = [plan.stages[spec.index] for spec in specs]
    try:
        if plan.num_stages == 1:
            return [uncut_program(specs[0], skeleton.whole(build, specs[0].seed), plan.flow)]
        if (flow := plan.flow) is not None:
            owned = {name for stage in own for name in parameters_of(flow, plan.ends, stage.index)}
            model = skeleton.build_module(build, specs[0].seed, owned)
            return [ReplayProgram(spec, model, flow, plan.ends) for spec in specs]
        layers = skeleton.build_layers(
            build, specs[0].seed, [index for stage in own for index in range(stage.first_layer, stage.end_layer)]
        )
    except PipesvcError:
        raise
    except Exception as cause:
        raise user_error(ErrorCode.BUILD_FAILED, "building the model", cause, where=where) from cause
    _refuse_shared(layers, own, where)
    return [
        _sequence(spec, layers[stage.first_layer : stage.end_layer]) for spec, stage in zip(specs, own, strict=True)
    ]


def uncut_program(spec: StageSpec, layers: Sequence[sequence.NamedLayer], flow: Flow | None = None) -> StageProgram:
    """Of what `skeleton.whole` gives. A flow, where there is one, tells which modules draw random numbers."""
    name, model = layers[0]
    if name:
        return _sequence(spec, layers)
    return WholeProgram(spec, model.to(spec.device), flow.random_modules if flow is not None else ())


def _sequence(spec: StageSpec, layers: Sequence[sequence.NamedLayer]) -> SequenceProgram:
    return SequenceProgram(spec, [(name, layer.to(spec.device)) for name, layer in layers])


def _refuse_shared(layers: Sequence[sequence.NamedLayer], own: Sequence[StagePlan], where: Where) -> None:
    """Two stages would each update the parameter, also when one worker holds both."""
    stage_of = {layer: stage.index for stage in own for layer in range(stage.first_layer, stage.end_layer)}
    for one, other, name in sequence.shared_parameters(layers):
        if stage_of.get(one) != stage_of.get(other):
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"layers {layers[one][0]!r} and {layers[other][0]!r} share the parameter {name!r} "
                "and lie in different stages",
                advice="Put both into one stage (boundaries, or one mark), or give each a parameter of its own",
                where=where,
            )
