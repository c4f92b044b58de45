"""The layers of a model whose order the user wrote down.

A chain that is guessed from `named_children` is wrong without a sound whenever `forward` does something else, so an
order is only accepted where the user stated it: an `nn.Sequential` with its own forward, or a list of modules.
Everything that a plain run of the layers one after another would lose (a forward of one's own, hooks or parameters on
the container) is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from pipesvc.errors import ErrorCode, PipesvcError

NamedLayer = tuple[str, nn.Module]

_WAY_OUT = (
    "Return a module with a forward, or an nn.Sequential or a list of modules: each entry is a layer then, and the "
    "output of one is the input of the next."
)


def is_list(model: object) -> bool:
    """Whether this is to be run as layers, one after the other. Any other module has a forward, which is followed."""
    if isinstance(model, nn.Sequential):
        return not _lost_by_a_chain(model)
    return not isinstance(model, nn.Module) or (isinstance(model, nn.ModuleList) and not has_forward(model))


def parts_of(model: object) -> list[NamedLayer]:
    """The layers of a list; a module with a forward of its own is one part, whose name is empty."""
    if isinstance(model, nn.Module) and not is_list(model):
        return [("", model)]
    return layers_of(model)


def as_one(model: object) -> list[NamedLayer]:
    """A module as one part, also where it is a list."""
    if not isinstance(model, nn.Module):
        raise PipesvcError(ErrorCode.INVALID_JOB, f"the model function gave a {type(model).__name__}, not a module")
    return [("", model)]


def layers_of(model: object) -> list[NamedLayer]:
    """Each layer with its name in the state dict; a nested Sequential is one layer."""
    layers: list[NamedLayer] = []
    for name, layer in _entries(model):
        if not isinstance(layer, nn.Module):
            what = "is missing (None)" if layer is None else f"is a {type(layer).__name__}, not a module"
            raise _refused(f"layer {name!r} of the model {what}")
        if not has_forward(layer):
            raise _refused(f"layer {name!r} ({type(layer).__name__}) has no forward")
        layers.append((name, layer))
    if not layers:
        raise _refused("the model has no layers")
    _refuse_repeats(layers)
    return layers


def refuse_lazy(layers: Sequence[NamedLayer]) -> None:
    """A lazy layer learns its sizes from its first input, which a worker that builds one stage never sees."""
    for name, layer in layers:
        for path, module in layer.named_modules(prefix=name):
            # `Any`: torch annotates the argument as if it were always lazy.
            values: list[Any] = [*module._parameters.values(), *module._buffers.values()]
            if any(value is not None and is_lazy(value) for value in values):
                raise PipesvcError(
                    ErrorCode.INVALID_JOB,
                    f"{path!r} ({type(module).__name__}) has no sizes before its first call",
                    advice="Give the sizes: nn.Linear instead of nn.LazyLinear, and so on.",
                )


def named_parameters(layers: Sequence[NamedLayer]) -> dict[str, nn.Parameter]:
    """Each parameter once, under its first name in the state dict of the whole, as `nn.Module.named_parameters`."""
    first_names: dict[int, str] = {}
    found: dict[str, nn.Parameter] = {}
    for layer_name, layer in layers:
        for name, parameter in layer.named_parameters(prefix=layer_name):
            if first_names.setdefault(id(parameter), name) == name:
                found[name] = parameter
    return found


class SharedBy(NamedTuple):
    """A parameter and the layers that hold it, ascending."""

    parameter: nn.Parameter
    layers: list[int]
    names: list[str]  # all of them in the state dict


def shared_parameters(layers: Sequence[NamedLayer]) -> dict[str, SharedBy]:
    """Of each parameter that several layers hold, by its first name."""
    found: dict[int, SharedBy] = {}
    for index, (layer_name, layer) in enumerate(layers):
        for name, parameter in layer.named_parameters(prefix=layer_name, remove_duplicate=False):
            known = found.setdefault(id(parameter), SharedBy(parameter, [], []))
            known.names.append(name)
            if index not in known.layers:
                known.layers.append(index)
    return {each.names[0]: each for each in found.values() if len(each.layers) > 1}


def _entries(model: object) -> list[tuple[str, object]]:
    if isinstance(model, list | tuple):
        return [(str(index), layer) for index, layer in enumerate(model)]
    if isinstance(model, nn.Sequential | nn.ModuleList):
        if lost := _lost_by_a_chain(model):
            raise _refused(lost)
        return list(model._modules.items())
    raise _refused(f"the model is a {type(model).__name__}, whose order of layers is not known")


def _lost_by_a_chain(model: nn.Sequential | nn.ModuleList) -> str:
    """What of this container a run of its layers one after another would lose, in words; "" for nothing."""
    kind = type(model).__name__
    if type(model).forward not in (nn.Sequential.forward, nn.Module.forward) or "forward" in model.__dict__:
        return f"the model ({kind}) has a forward of its own"
    own = [name for name, value in [*model._parameters.items(), *model._buffers.items()] if value is not None]
    if own:
        return f"the model ({kind}) holds {own[0]!r} itself, outside its layers"
    hooks = [model._forward_hooks, model._forward_pre_hooks, model._backward_hooks, model._backward_pre_hooks]
    if any(hooks):
        return f"the model ({kind}) has hooks of its own, which no stage would call: register them on a layer"
    return ""


def has_forward(module: nn.Module) -> bool:
    """Whether it can be called; a ModuleList, or a namespace of modules, cannot."""
    return type(module).forward is not nn.Module.forward or "forward" in module.__dict__


def _refuse_repeats(layers: Sequence[NamedLayer]) -> None:
    """A layer may come several times if stages that hold copies of it do the same, which buffers may prevent."""
    first_names: dict[int, str] = {}
    for name, layer in layers:
        first = first_names.setdefault(id(layer), name)
        buffer = next((path for path, _ in layer.named_buffers()), None)
        if first != name and buffer is not None:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"layers {first!r} and {name!r} are the same {type(layer).__name__} object, whose buffer {buffer!r} "
                "may change in forward",
                advice="Stages hold copies of it: give each place its own module, or put both into one layer.",
            )


def _refused(message: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_JOB, message, advice=_WAY_OUT)
