"""A function by reference, with JSON arguments.

`functools.partial` and closures would do for one process, but what reaches a worker is an import path and a JSON
object: a pickle would run whatever bytes say and breaks between versions. So the arguments are checked here, at
birth, where the user still sees which one cannot travel.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, Final

from pipesvc.client.checks import refusal, refuse, shown, text

_WAY_OUT = "Write a function at the top level of a file, and pass values with pipesvc.Call(function, name=value)"
# What Python reads back: a whole number of at most so many digits, and lists in lists far from its recursion limit.
_NUMBER_END: Final = 10**sys.int_info.default_max_str_digits
_MAX_DEPTH: Final = 100


class Call:
    """`Call(function, name=value, ...)`: the function, and keyword arguments for it.

    Arguments are JSON, or functions and classes that can be imported, which are kept in `functions`.
    """

    __slots__ = ("arguments", "function", "functions")

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    functions: Mapping[str, Callable[..., Any]]

    def __init__(self, function: Callable[..., Any], /, **arguments: Any) -> None:
        check_function(function, what=type(self).__name__)
        functions = {name: value for name, value in arguments.items() if callable(value)}
        for name, value in functions.items():
            check_function(value, what=f"the argument {name}")
            del arguments[name]
        try:
            for name, value in arguments.items():
                check_json(value, path=name)
            json.dumps(arguments)
        except (RecursionError, ValueError) as error:  # nested too deeply, or a whole number of thousands of digits
            raise refuse(f"the arguments of {type(self).__name__} are no JSON: {error}") from None
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "arguments", dict(arguments))
        object.__setattr__(self, "functions", functions)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: make another one to change {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Call):
            return NotImplemented
        mine, theirs = ((each.function, each.arguments, each.functions) for each in (self, other))
        return mine == theirs

    def __hash__(self) -> int:
        return hash((type(self), self.function, self.arguments_json))

    def __repr__(self) -> str:
        shown = {name: repr(value) for name, value in self.arguments.items()}
        shown |= {name: each.__qualname__ for name, each in self.functions.items()}
        pairs = "".join(f", {name}={value}" for name, value in shown.items())
        return f"{type(self).__name__}({self.function.__qualname__}{pairs})"

    @property
    def arguments_json(self) -> str:
        return json.dumps(self.arguments, sort_keys=True, allow_nan=False)


class Optimizer(Call):
    """`Optimizer(torch.optim.SGD, lr=0.1)`: made on each stage over that stage's parameters.

    `groups` gives parameters options of their own: `{"*.bias": {"weight_decay": 0.0}}` by patterns (fnmatch) on the
    names of the unsplit model, of which the first that matches counts; or an importable function
    `rule(name, parameter)` that returns a dict of options, equal ones for parameters of one group. It sees parameters
    of other stages without their values.
    """

    __slots__ = ("groups",)

    groups: Mapping[str, Mapping[str, Any]] | Call | None

    def __init__(
        self,
        function: Callable[..., Any],
        /,
        *,
        groups: Mapping[str, Mapping[str, Any]] | Callable[..., Any] | Call | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(function, **arguments)
        object.__setattr__(self, "groups", _checked_groups(groups))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optimizer):
            return NotImplemented
        return self.groups == other.groups and super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        groups = "" if self.groups is None else f", groups={self.groups!r}"
        return f"{super().__repr__()[:-1]}{groups})"


class Scheduler(Call):
    """`Scheduler(torch.optim.lr_scheduler.StepLR, step_size=3)`: made on each stage over each of its optimizers.

    It is stepped after every update (`every="step"`) or at the end of every epoch (`every="epoch"`). A function that
    takes an optimizer and returns a scheduler will do as well.
    """

    __slots__ = ("every",)

    every: str

    def __init__(self, function: Callable[..., Any], /, *, every: str = "step", **arguments: Any) -> None:
        super().__init__(function, **arguments)
        if not isinstance(every, str) or every not in ("step", "epoch"):
            raise refusal("every", every, '"step" or "epoch"')
        object.__setattr__(self, "every", every)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scheduler):
            return NotImplemented
        return self.every == other.every and super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, every={self.every!r})"


def _checked_groups(groups: object) -> Mapping[str, Mapping[str, Any]] | Call | None:
    if groups is None or isinstance(groups, Call):
        return groups
    if not isinstance(groups, Mapping):
        valid = "a dict of name patterns to options, or a function rule(name, parameter)"
        if not callable(groups):
            raise refusal("groups", groups, valid, 'Write groups={"*.bias": {"weight_decay": 0.0}}')
        return as_call(groups, what="groups")
    for pattern, options in groups.items():
        text("a pattern of groups", pattern)
        if not isinstance(options, Mapping):
            raise refusal(f"groups has {pattern!r}, whose value", options, 'a dict like {"weight_decay": 0.0}')
        check_json(dict(options), path=f"groups[{pattern!r}]")
    return {pattern: dict(options) for pattern, options in groups.items()}


def as_call(value: Callable[..., Any] | Call, *, what: str) -> Call:
    """A plain function is a call without arguments."""
    if isinstance(value, Call):
        return value
    check_function(value, what=what)
    return Call(value)


def check_function(value: object, *, what: str) -> None:
    """Refuses what has no import path, with the way out."""
    name = getattr(value, "__qualname__", "")
    if isinstance(value, functools.partial):
        raise refuse(f"{what} is a functools.partial, which has no name to import", _WAY_OUT)
    if isinstance(value, MethodType):
        raise refuse(f"{what} is the bound method {name}: the object that it is bound to cannot travel", _WAY_OUT)
    if "<lambda>" in name:
        raise refuse(f"{what} is a lambda, which has no name to import", _WAY_OUT)
    if "<locals>" in name:
        raise refuse(f"{what} is {name}, defined inside another function, where no import reaches it", _WAY_OUT)
    if not callable(value) or not name:
        kind = type(value).__name__
        raise refuse(f"{what} is an instance of {kind}; a worker builds its own from a function or class", _WAY_OUT)


def check_json(value: object, *, path: str, depth: int = 0) -> None:
    """Refuses a value that JSON would not bring to the other side as it is; tuples arrive as lists."""
    if value is None or isinstance(value, bool | str):
        return
    if isinstance(value, int):
        if not -_NUMBER_END < value < _NUMBER_END:
            raise refuse(
                f"the argument {path} is a whole number of more than {sys.int_info.default_max_str_digits} digits"
            )
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise refuse(f"the argument {path} is {value}, which JSON has no number for")
        return
    if not isinstance(value, list | tuple | dict):
        raise refuse(
            f"the argument {path} is a {type(value).__name__}; arguments travel as JSON",
            "Make it inside the function from numbers, strings, lists and dicts",
        )
    if depth == _MAX_DEPTH:
        name = path.partition("[")[0]
        raise refuse(f"the argument {name} contains itself, or is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise refuse(f"the argument {path} has the key {shown(key)}; JSON knows only strings as keys")
            check_json(item, path=f"{path}[{shown(key)}]", depth=depth + 1)
        return
    for index, item in enumerate(value):
        check_json(item, path=f"{path}[{index}]", depth=depth + 1)
