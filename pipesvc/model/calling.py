"""How the inputs of a micro-batch become the arguments of a module's forward.

A data source gives one value; forward has parameters with names. The rule looks at nothing but the two, so inspector
and executors find the same without a word to each other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pipesvc.errors import ErrorCode, PipesvcError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_of(forward: Callable[..., Any], inputs: Any) -> Arguments:
    """`forward(*args, **kwargs)` for these inputs.

    A dict whose names fit the parameters of forward is keyword arguments, a tuple that fits is positional arguments,
    and anything else is one argument. The order of the tensors stays that of `inputs`.
    """
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return (inputs,), {}
    ways: list[Arguments] = [((inputs,), {})]
    if isinstance(inputs, dict):
        ways.insert(0, ((), inputs))
    elif isinstance(inputs, tuple):
        ways.insert(0, (inputs, {}))
    reasons = []
    for args, kwargs in ways:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            reasons.append(str(error))
        else:
            return args, kwargs
    raise PipesvcError(
        ErrorCode.INVALID_JOB,
        f"the inputs ({_text_of(inputs)}) do not fit the model's forward{signature}: {reasons[0]}",
        advice="Let the data source give a dict with the names of forward's parameters, a tuple in their order, or the "
        "one argument.",
    )


def _text_of(inputs: Any) -> str:
    if isinstance(inputs, dict):
        return f"a dict with {', '.join(map(repr, inputs))}"
    if isinstance(inputs, tuple):
        return f"a tuple of {len(inputs)}"
    return f"one {type(inputs).__name__}"
