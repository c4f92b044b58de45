"""Numbers the parameters in the order in which they are made, which is the same in every process.

A parameter is initialised before its module is attached, so while it is made nobody can know which layer it will
belong to. Its number is known: a first pass, in which all are ghosts, learns which numbers end in which layer; the
pass that counts then knows by number what to keep. Parameters become ghosts when they are registered, before
`reset_parameters` touches their pages, by torch's public hook. A deep copy registers nothing, so
`Parameter.__deepcopy__` is replaced while building.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.ghosts import ghost_of, is_ghost, user_line
from pipesvc.model.keyed import Keys

_NUMBER: Final = "_pipesvc_number"
_GHOST: Final = "_pipesvc_ghost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """One event of the first pass; `source` is the number of the parameter that was copied."""

    number: int
    module: nn.Module | None
    parameter: nn.Parameter
    source: int | None = None


class Registry:
    """`kept` are the numbers that stay real; None: the first pass, where none does and every event is recorded.

    `keys` learns the numbers.
    """

    def __init__(self, kept: frozenset[int] | None = None, keys: Keys | None = None) -> None:
        self._kept = kept
        self._keys = keys
        self._thread = threading.get_ident()
        self.num_parameters = 0
        self.registrations: list[Registration] = []
        self.signature: list[str] = []  # equal in two passes that built the same

    @contextmanager
    def active(self) -> Iterator[None]:
        parameter_class: Any = nn.Parameter
        deep_copy = parameter_class.__deepcopy__

        def copied(parameter: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
            if threading.get_ident() != self._thread:
                another: nn.Parameter = deep_copy(parameter, memo)
                return another
            if id(parameter) not in memo:
                memo[id(parameter)] = self._copy(parameter, lambda: deep_copy(parameter, memo))
            known: nn.Parameter = memo[id(parameter)]
            return known

        hook: Any = self._register  # torch annotates its result as None, and takes a parameter
        handle = register_module_parameter_registration_hook(hook)
        parameter_class.__deepcopy__ = copied
        try:
            yield
        finally:
            parameter_class.__deepcopy__ = deep_copy
            handle.remove()

    def _register(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or threading.get_ident() != self._thread or _has_no_sizes(parameter):
            return None
        known = parameter.__dict__.get(_GHOST)  # registered before under a local name: tied
        if isinstance(known, nn.Parameter):
            parameter = known
        number = parameter.__dict__.get(_NUMBER)
        if number is None:
            number = self._number(parameter)
        if not is_ghost(parameter) and parameter.device.type != "cpu":
            raise PipesvcError(
                ErrorCode.BUILD_FAILED,
                f"{type(module).__name__}.{name} is made on {parameter.device} at {user_line()}",
                advice="Build the model on the CPU: each stage is moved to its device afterwards.",
            )
        self._tell_keys(parameter, number)
        if not is_ghost(parameter) and (self._kept is None or number not in self._kept):
            ghost = ghost_of(parameter)
            parameter.__dict__[_GHOST] = ghost
            parameter = ghost
            self._tell_keys(ghost, number)
        self._record(number, module, name, parameter)
        return parameter

    def _copy(self, parameter: nn.Parameter, deep_copy: Any) -> nn.Parameter:
        source = parameter.__dict__.get(_NUMBER)
        number = self.num_parameters
        if self._kept is not None and number in self._kept:
            copy: nn.Parameter = deep_copy()
        else:
            copy = ghost_of(parameter)
            unmark(copy)
        self._number(copy)
        self._tell_keys(copy, number)
        self._record(number, None, "copy", copy, source)
        return copy

    def _tell_keys(self, parameter: nn.Parameter, number: int) -> None:
        if self._keys is not None:
            self._keys.know(parameter, number)

    def _number(self, parameter: nn.Parameter) -> int:
        number = self.num_parameters
        self.num_parameters += 1
        parameter.__dict__[_NUMBER] = number
        return number

    def _record(
        self, number: int, module: nn.Module | None, name: str, parameter: nn.Parameter, source: int | None = None
    ) -> None:
        shape = tuple(parameter.shape)
        self.signature.append(f"{number} {type(module).__name__}.{name} {shape} {parameter.dtype}")
        if self._kept is None:
            self.registrations.append(Registration(number=number, module=module, parameter=parameter, source=source))


def number_of(parameter: nn.Parameter) -> int | None:
    number: int | None = parameter.__dict__.get(_NUMBER)
    return number


def unmark(parameter: nn.Parameter) -> None:
    """Takes off what building wrote on it."""
    parameter.__dict__.pop(_NUMBER, None)
    parameter.__dict__.pop(_GHOST, None)


def _has_no_sizes(parameter: Any) -> bool:
    return bool(is_lazy(parameter))
