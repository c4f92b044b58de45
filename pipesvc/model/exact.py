"""The two passes of an exact build (see `skeleton`, which is what others call)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model import trunc_normal
from pipesvc.model.ghosts import UnreadableError, ghost_of, is_ghost, shape_of, tensors_in, unreadable_reads
from pipesvc.model.keyed import KeyedBuild, Keys
from pipesvc.model.modes import LARGE_BYTES, Faces, Operators
from pipesvc.model.random_state import same_random_state_after
from pipesvc.model.registry import Registry, number_of, unmark
from pipesvc.model.sequence import NamedLayer, as_one, layers_of, parts_of, refuse_lazy

Build = Callable[[], object]
LayersOf = Callable[[object], list[NamedLayer]]

_REPEATABLE: Final = (
    "The model function runs twice on each worker and must make the same, new modules each time: make every module "
    "inside it, and let nothing in it depend on random values, time, or what an earlier call left behind."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstPass:
    layers: list[NamedLayer]  # of a model that is one module: that alone
    registry: Registry
    operators: Operators
    large_bytes: int | None


def first_pass(build: Build, layers_of: LayersOf = layers_of) -> FirstPass:
    try:
        return _on_shapes(build, LARGE_BYTES, layers_of)
    except UnreadableError as error:
        # The value that was read may be of a large tensor that belongs to no parameter: once more with those real.
        try:
            return _on_shapes(build, None, layers_of)
        except RuntimeError:  # too large to be real
            raise error from None


def build_layers(build: Build, seed: int, owned: Collection[int]) -> list[NamedLayer]:
    """All layers in order: those at the indices `owned` as `whole` gives them, the others on meta."""
    return _built(build, seed, first_pass(build), owned, layers_of)


def build_keyed(build: KeyedBuild, seed: int, layers_of: LayersOf = parts_of) -> list[NamedLayer]:
    """All layers, or the one module without a name, with all values."""
    first = first_pass(build, layers_of)
    return _built(build, seed, first, range(len(first.layers)), layers_of)


def _built(build: Build, seed: int, first: FirstPass, owned: Collection[int], layers_of: LayersOf) -> list[NamedLayer]:
    wrong = sorted(index for index in owned if not 0 <= index < len(first.layers))
    if wrong or not owned:
        what = f"layer {wrong[0]} does not exist" if wrong else "no layer is asked for"
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"{what}: the model has {len(first.layers)} layers")
    if len(set(owned)) == len(first.layers) and not isinstance(build, KeyedBuild):
        torch.manual_seed(seed)
        return layers_of(build())
    kept, dropped = _needed(first, [module for index in owned for module in first.layers[index][1].modules()])
    layers = _second_pass(build, seed, first, kept, dropped, layers_of)
    _finish(layers, owned)
    return layers


def build_module(build: Build, seed: int, owned: Collection[str]) -> nn.Module:
    """The model, whose parameters and buffers named in `owned` are as in the plain build, the others on meta."""
    first = first_pass(build, as_one)
    shapes = first.layers[0][1]
    unknown = sorted(set(owned) - _state(shapes).keys())
    if unknown:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"the model has no parameter or buffer {unknown[0]!r}")
    if not owned:
        _keep(shapes, owned)
        return shapes
    kept, dropped = _needed(first, _with_parametrized(shapes, _holders(shapes, owned)))
    del shapes
    model = _second_pass(build, seed, first, kept, dropped, as_one)[0][1]
    for path, module in _holders(model, owned).items():
        _check_real(path, module)
    _keep(model, owned)
    return model


def _second_pass(
    build: Build,
    seed: int,
    first: FirstPass,
    kept: frozenset[int],
    dropped: frozenset[int],
    layers_of: LayersOf,
) -> list[NamedLayer]:
    """Built with the draws of the whole, and only the parameters `kept` real. The modules of `first` may go."""
    signature, num_large, large_bytes = first.registry.signature, first.operators.num_large, first.large_bytes
    keys = Keys(seed, _names(first.layers)) if isinstance(build, KeyedBuild) else None
    seen = [weakref.ref(module) for _, layer in first.layers for module in layer.modules()]
    first.layers.clear()
    first.registry.registrations.clear()
    registry = Registry(kept, keys)
    operators = Operators(does_draw=True, large_bytes=large_bytes, dropped=dropped, keys=keys)
    torch.manual_seed(seed)
    layers = _run(build, registry, operators, layers_of, keys, does_draw=True)
    if keys is not None:  # which draws were the last depends on what is kept
        torch.manual_seed(seed)
    again = {id(module) for _, layer in layers for module in layer.modules()}
    is_cached = any(id(module) in again for ref in seen if (module := ref()) is not None)
    if is_cached or registry.signature != signature or operators.num_large != num_large:
        what = "returns modules that it made before" if is_cached else "does not make the same when it is called again"
        raise PipesvcError(ErrorCode.BUILD_FAILED, f"the model function {what}", advice=_REPEATABLE)
    return layers


def _on_shapes(build: Build, large_bytes: int | None, layers_of: LayersOf) -> FirstPass:
    registry = Registry()
    operators = Operators(does_draw=False, large_bytes=large_bytes)
    with same_random_state_after():
        layers = _run(build, registry, operators, layers_of, does_draw=False)
    refuse_lazy(layers)
    return FirstPass(layers=layers, registry=registry, operators=operators, large_bytes=large_bytes)


def _run(
    build: Build,
    registry: Registry,
    operators: Operators,
    layers_of: LayersOf,
    keys: Keys | None = None,
    *,
    does_draw: bool,
) -> list[NamedLayer]:
    with unreadable_reads() as reads:
        try:
            with registry.active(), trunc_normal.replaced(does_draw=does_draw, keys=keys), operators, Faces():
                model = build()
        except Exception as error:
            if reads and error is not reads[0]:
                raise reads[0] from error
            raise
        if reads:  # caught by the code that asked: what it did instead is not what the plain build does
            raise reads[0]
    return layers_of(model)


def _names(layers: Sequence[NamedLayer]) -> dict[int, str]:
    """Number of a parameter of the first pass -> its first name."""
    names: dict[int, str] = {}
    for layer_name, layer in layers:
        for name, parameter in layer.named_parameters(prefix=layer_name, remove_duplicate=False):
            if (number := number_of(parameter)) is not None:
                names.setdefault(number, name)
    return names


def _needed(first: FirstPass, ours: Sequence[nn.Module]) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of the parameters that must be real, and of the large factory calls that need not be.

    `ours` are the modules, of the first pass, whose own parameters and buffers are wanted.
    """
    modules = {id(module) for module in ours}
    registrations = first.registry.registrations
    # Also what an owned module held for a while only: a parametrization starts from the original weight.
    kept = {each.number for each in registrations if each.module is not None and id(each.module) in modules}
    held = [each for module in ours for each in module._parameters.values() if each is not None]
    kept |= {number for each in held if (number := number_of(each)) is not None}
    sources = {each.number: each.source for each in registrations if each.source is not None}
    pending = list(kept)
    while pending:  # what is copied must be real until it is copied
        source = sources.get(pending.pop())
        if source is not None and source not in kept:
            kept.add(source)
            pending.append(source)
    flow = first.operators.flow
    needed = flow.sources(each.parameter for each in registrations if each.number in kept)
    needed |= flow.sources(tensor for module in ours for tensor in tensors_in(module.__dict__))
    others = [each for _, layer in first.layers for each in layer.modules() if id(each) not in modules]
    known = flow.sources(each.parameter for each in registrations)
    known |= flow.sources(each for module in others for each in module._buffers.values() if each is not None)
    return frozenset(kept), frozenset(known - needed)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _holders(model: nn.Module, owned: Collection[str]) -> dict[str, nn.Module]:
    """Path -> module, of those that hold one of these names themselves, also under another name (tied)."""
    ids = {id(value) for name, value in _state(model).items() if name in owned}

    def is_holder(module: nn.Module) -> bool:
        return any(id(each) in ids for each in [*module._parameters.values(), *module._buffers.values()])

    return {path: module for path, module in model.named_modules() if is_holder(module)}


def _with_parametrized(model: nn.Module, holders: dict[str, nn.Module]) -> list[nn.Module]:
    """What a parametrization holds starts from a weight that the parametrized module held before."""
    owners = [path.rpartition("parametrizations")[0].rstrip(".") for path in holders if "parametrizations" in path]
    return [*holders.values(), *map(model.get_submodule, owners)]


def _keep(model: nn.Module, owned: Collection[str]) -> None:
    """What is not owned becomes shapes alone; what is tied stays tied."""
    refuse_lazy([("", model)])
    ours = {id(value) for name, value in _state(model).items() if name in owned}
    ghosts: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in ours and not is_ghost(parameter):
                parameter = module._parameters[name] = ghosts.setdefault(id(parameter), ghost_of(parameter))
            unmark(parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in ours and not is_ghost(buffer):
                module._buffers[name] = shape_of(buffer)


def _finish(layers: Sequence[NamedLayer], owned: Collection[int]) -> None:
    """The others become shapes alone, buffers too, but for what they share with ours, which must have all values."""
    refuse_lazy(layers)
    ours = {id(module) for index, (_, layer) in enumerate(layers) if index in owned for module in layer.modules()}
    shared = {id(each) for index, (_, layer) in enumerate(layers) if index in owned for each in layer.parameters()}
    for index, (name, layer) in enumerate(layers):
        for path, module in layer.named_modules(prefix=name):
            if index in owned:
                _check_real(path, module)
            elif id(module) not in ours:
                _empty(module, shared)


def _check_real(path: str, module: nn.Module) -> None:
    for name, value in [*module._parameters.items(), *module._buffers.items(), *module.__dict__.items()]:
        if any(is_ghost(each) for each in tensors_in(value)):
            raise PipesvcError(
                ErrorCode.BUILD_FAILED,
                f"{path}.{name} is made from a tensor of another stage, or has no values (meta)",
                advice="Make it from sizes and constants, or put both layers into one stage.",
            )
        if isinstance(value, nn.Parameter):
            unmark(value)


def _empty(module: nn.Module, shared: Collection[int]) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in shared:
            module._parameters[name] = parameter if is_ghost(parameter) else ghost_of(parameter)
            unmark(module._parameters[name])  # type: ignore[arg-type]
    for name, buffer in module._buffers.items():
        if buffer is not None and not is_ghost(buffer):
            module._buffers[name] = shape_of(buffer)
