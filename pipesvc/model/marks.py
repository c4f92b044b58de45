"""`device_guard`: where the user says that layers belong together on one device.

The obvious place for a mark is an attribute of the layer, but a guard never sees a layer: it sees what is registered
while it is open. So torch's public registration hooks write the label down, by name, on the module that received a
parameter, a buffer or a child, and `mark_of` reads a layer's mark out of its subtree. Where a parameter was made
counts before where a module was attached, so a list that is built inside a guard keeps its place when it is attached
outside. The labels lie in the module's `__dict__`: they travel with a deep copy and never show in a state dict.

A deep copy registers nothing. One that is made inside a guard is newly built there, so `nn.Module.__setstate__`,
through which every copy comes to life, is followed by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from pipesvc.core import marks
from pipesvc.errors import ErrorCode, PipesvcError

_ATTACHED: Final = "_pipesvc_attached_mark"  # str: the guard in which this module was attached or copied
_TENSORS: Final = "_pipesvc_tensor_marks"  # dict of tensor name -> str: the guard in which it was registered

_current: ContextVar[str | None] = ContextVar("device_guard", default=None)
# For the replay of a forward (`replay.guards`): told the label of each guard that opens, and of the outer one to which
# the end of an inner one returns.
on_enter: ContextVar[Callable[[str], None] | None] = ContextVar("on_enter", default=None)


@contextmanager
def device_guard(label: str) -> Iterator[None]:
    """Layers built in this block carry `label` ("cpu", "cpu:NAME" or "gpu:N"); the innermost guard counts.

    In forward it does the same for what runs in the block.
    """
    mark = str(marks.parse(label))
    _watch_registrations()
    token = _current.set(mark)
    try:
        if (entered := on_enter.get()) is not None:
            entered(mark)
        yield
    finally:
        _current.reset(token)
    outer = _current.get()
    if outer is not None and (entered := on_enter.get()) is not None:
        entered(outer)


def open_guard() -> str:
    """The label of the innermost guard that is open, "" if none is."""
    return _current.get() or ""


def mark_of(module: nn.Module) -> str:
    """The mark of a layer, "" if it has none. A layer with several marks is refused: it lies on one device."""
    found = sorted(_marks_within(module, set()))
    if len(found) > 1:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"a layer ({type(module).__name__}) holds parts with different marks: {', '.join(found)}",
            advice="A layer lies on one device: make its parts layers of their own, or build them under one guard.",
        )
    return found[0] if found else ""


def _marks_within(module: nn.Module, seen: set[int]) -> set[str]:
    if id(module) in seen:
        return set()
    seen.add(id(module))
    present = {name for name, value in [*module._parameters.items(), *module._buffers.items()] if value is not None}
    found = {label for name, label in _tensor_marks(module).items() if name in present}
    for child in module._modules.values():
        if child is not None:
            found |= _marks_within(child, seen)
    attached = module.__dict__.get(_ATTACHED)
    return found or ({attached} if isinstance(attached, str) else set())


def _tensor_marks(module: nn.Module) -> dict[str, str]:
    labels: dict[str, str] = module.__dict__.get(_TENSORS, {})
    return labels


def _on_tensor(module: nn.Module, name: str, value: object) -> None:
    label = _current.get()
    if label is not None and value is not None:
        module.__dict__.setdefault(_TENSORS, {}).setdefault(name, label)


def _on_module(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    label = _current.get()
    if label is not None and child is not None:
        child.__dict__.setdefault(_ATTACHED, label)


def _on_copy(module: nn.Module) -> None:
    label = _current.get()
    if label is not None:
        module.__dict__[_ATTACHED] = label
        module.__dict__[_TENSORS] = dict.fromkeys([*module._parameters, *module._buffers], label)


@cache
def _watch_registrations() -> None:
    """Once, at the first guard: a process that uses no guards pays nothing."""
    register_module_parameter_registration_hook(_on_tensor)
    register_module_buffer_registration_hook(_on_tensor)
    register_module_module_registration_hook(_on_module)
    set_state: Any = nn.Module.__setstate__

    def set_state_and_mark(self: nn.Module, state: dict[str, Any]) -> None:
        set_state(self, state)
        _on_copy(self)

    nn.Module.__setstate__ = set_state_and_mark  # type: ignore[method-assign]
