"""A part of a model with the numbers that the whole would have, without holding the whole.

Building the model and dropping what is not ours needs the memory of all; seeding each layer by its name gives other
numbers than plain torch. So the model function runs twice. The first pass makes no draw and holds no value: it learns
which parameters, in order of their making, belong to which layer. The second begins with `torch.manual_seed(seed)`,
keeps only what the wanted layers need, and makes the draws of all others in a small scratch, so that every worker
gets the very bits of the plain build and ends with the very state of the generator. The model function must therefore
do the same when it is called again; that is checked.

Drawing is serial: every worker draws the whole stream, about 5 s per GB. With a `KeyedBuild` none of it is drawn for
others, and the numbers are other ones (see `keyed`).

`exact` does this with parts of torch that are not promised to stay. It is loaded when first needed and tried on a
small model; under a torch where it does not hold, a model of several stages is refused by name, and one of a single
stage is built plainly as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

from pipesvc.core.plan import LayerInfo
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.keyed import KeyedBuild
from pipesvc.model.layer_infos import layer_info, shared_parameter
from pipesvc.model.marks import mark_of
from pipesvc.model.random_state import same_random_state_after
from pipesvc.model.replay.units import units_of
from pipesvc.model.sequence import NamedLayer, as_one, layers_of, parts_of, refuse_lazy, shared_parameters
from pipesvc.model.stage_builds import StageBuilds

Build = Callable[[], object]


def inspect_parts(build: Build, *, is_whole: bool = False) -> list[NamedLayer]:
    """The layers themselves, or the one module; the generators stay as they were.

    Without a draw and without values, so that a model larger than this host can be looked at, and one that cannot be
    built in parts is refused. `is_whole` says that it will not be: then it is built as it is.
    """
    if isinstance(build, StageBuilds):
        return _stages_looked_at(build)
    if not is_whole or isinstance(build, KeyedBuild):
        with _saying_what_keys_need(build, is_whole=is_whole):
            layers: list[NamedLayer] = _exact().first_pass(build, parts_of).layers
            return layers
    with same_random_state_after():
        layers = parts_of(build())
        refuse_lazy(layers)
    return layers


def layer_infos(layers: Sequence[NamedLayer]) -> list[LayerInfo]:
    """A module that is cut has marks of many stages, so that of the one part says nothing."""
    counted: set[int] = set()
    infos = [layer_info(name, layer, mark_of(layer) if name else "", counted) for name, layer in layers]
    for name, held in shared_parameters(layers).items():
        for index in held.layers:
            info = infos[index]
            infos[index] = replace(info, shared=(*info.shared, shared_parameter(name, held.parameter)))
    return infos


def module_names(layers: Sequence[NamedLayer]) -> list[str]:
    """Of all modules, as the whole model names them."""
    return [path for name, layer in layers for path, _ in layer.named_modules(prefix=name)]


def state_shapes(layers: Sequence[NamedLayer]) -> dict[str, torch.Tensor]:
    """The state dict of the whole model, of `inspect_parts`."""
    state: dict[str, Any] = {}
    for name, layer in layers:
        layer.state_dict(destination=state, prefix=f"{name}." if name else "", keep_vars=True)
    return state


def _stages_looked_at(stages: StageBuilds) -> list[NamedLayer]:
    """One after the other; what cannot be built on shapes is built and emptied."""
    modules: list[object] = []
    for index, build in enumerate(stages.builds):
        with _naming_the_stage(index), _saying_what_keys_need(build, is_whole=True):
            try:
                ((_, module),) = _exact().first_pass(build, as_one).layers
            except PipesvcError as error:
                if error.code is not ErrorCode.BUILD_FAILED or isinstance(build, KeyedBuild):
                    raise
                with same_random_state_after():
                    ((_, module),) = as_one(build())
                    refuse_lazy([("", module)])
                    module = module.to("meta")
        modules.append(module)
    layers = layers_of(modules)
    for name, held in shared_parameters(layers).items():
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the builders of stages {', '.join(map(str, held.layers))} give the same parameter {name!r}",
            advice="Each runs on its own worker, so they can share nothing: let one function build the whole model.",
        )
    return layers


def _stage(build: Build, seed: int, index: int) -> NamedLayer:
    """Alone, with a seed of its own."""
    with _naming_the_stage(index):
        if isinstance(build, KeyedBuild):
            ((_, module),) = _exact().build_keyed(build, seed + index, as_one)
            return str(index), module
        torch.manual_seed(seed + index)
        ((_, module),) = as_one(build())
        refuse_lazy([("", module)])
        return str(index), module


@contextmanager
def _naming_the_stage(index: int) -> Iterator[None]:
    try:
        yield
    except PipesvcError as error:
        details = replace(error.details, message=f"the builder of stage {index}: {error.details.message}")
        raise PipesvcError.of(details) from error.__cause__


def inspect_units(model: nn.Module) -> list[LayerInfo]:
    """What replay would take for the layers of this module, before its forward has said in which order."""
    counted: set[int] = set()
    return [layer_info(name, unit, mark_of(unit), counted) for name, unit in units_of(model).items()]


def whole(build: Build, seed: int) -> list[NamedLayer]:
    """The plain build of all layers, or of the one module without a name."""
    if isinstance(build, StageBuilds):
        return [_stage(each, seed, index) for index, each in enumerate(build.builds)]
    if isinstance(build, KeyedBuild):
        with _saying_what_keys_need(build, is_whole=True):
            keyed: list[NamedLayer] = _exact().build_keyed(build, seed)
            return keyed
    torch.manual_seed(seed)
    layers = parts_of(build())
    refuse_lazy(layers)
    return layers


def build_layers(build: Build, seed: int, owned: Collection[int]) -> list[NamedLayer]:
    """All layers: those at the indices `owned` as `whole` gives them, the others as shapes alone (meta);
    of one builder for each stage, without anything.

    To be called inside `malloc.while_building`, or freed tensors stay with the process.
    """
    if isinstance(build, StageBuilds):
        builds = enumerate(build.builds)
        return [_stage(each, seed, index) if index in owned else (str(index), nn.Module()) for index, each in builds]
    layers: list[NamedLayer] = _exact().build_layers(build, seed, owned)
    return layers


def build_module(build: Build, seed: int, owned: Collection[str]) -> nn.Module:
    """A model that is no list: its parameters and buffers named in `owned` as in the plain build, the others on meta.

    With nothing owned, the skeleton for planning: nothing is drawn. To be called inside `malloc.while_building`.
    """
    model: nn.Module = _exact().build_module(build, seed, owned)
    return model


@contextmanager
def _saying_what_keys_need(build: Build, *, is_whole: bool) -> Iterator[None]:
    """One stage is the way out of what cannot be built in parts, but not where draws are keyed by name."""
    try:
        yield
    except PipesvcError as error:
        if not is_whole or not isinstance(build, KeyedBuild) or error.code is not ErrorCode.BUILD_FAILED:
            raise
        advice = 'Keyed by name, a model is built like one that is cut: leave out init="by_name".'
        raise PipesvcError.of(replace(error.details, advice=advice)) from error.__cause__


@cache
def _exact() -> Any:
    """The module, once it has proved itself under this torch."""
    try:
        exact = import_module("pipesvc.model.exact")
        with same_random_state_after():
            _try_out(exact.build_layers)
    except Exception as error:
        raise PipesvcError(
            ErrorCode.BUILD_FAILED,
            f"torch {torch.__version__} cannot build a part of a model exactly ({type(error).__name__}: {error})",
            advice="Use a torch that pipesvc is tested with, or run the model as one stage (pipeline=False).",
        ) from error
    return exact


def _try_out(build_layers: Callable[[Build, int, Collection[int]], list[NamedLayer]]) -> None:
    torch.manual_seed(1)
    plain, state = _sample(), torch.get_rng_state()
    for index in range(len(plain)):
        built = build_layers(_sample, 1, [index])
        ours = built[index][1].state_dict()
        if any(not torch.equal(value, ours[name]) for name, value in plain[index].state_dict().items()):
            raise ValueError(f"other values in {type(plain[index]).__name__}")
        if not torch.equal(state, torch.get_rng_state()):
            raise ValueError("another state of the generator")
        if not all(each.is_meta for at, (_, layer) in enumerate(built) if at != index for each in layer.parameters()):
            raise ValueError("values of other layers are kept")


def _sample() -> list[nn.Module]:
    """A little of everything that building does: draws, copies, rejection, values made before they are registered."""
    linear = nn.Linear(300, 301)
    nn.init.trunc_normal_(linear.weight, std=1.0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    table = nn.Embedding(1, 1)
    table.weight = nn.Parameter(torch.randn(1000, 301).mul_(0.5))
    return [linear, encoder, table, nn.BatchNorm1d(4)]
