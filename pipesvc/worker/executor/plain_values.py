"""State of optimizers and schedulers as text, with its tensors beside it.

`torch.save` would pickle it, and who loads a pickle runs what is in it. These are the types that torch's own optimizers
and schedulers keep; all else is refused by the path to it. Containers are lists that begin with their type's name:

    {"lr": 0.1, "betas": (0.9, 0.95)}  ->  ["dict",["lr",0.1],["betas",["tuple",0.9,0.95]]]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError

Keep = Callable[[Tensor], int]
Find = Callable[[int], Tensor]


def to_text(value: Any, what: str, keep: Keep) -> str:
    """`keep` takes a tensor and gives its number. Raises INVALID_JOB for what is of no such type."""
    return json.dumps(_described(value, what, keep), separators=(",", ":"))


def from_text(text: str, find: Find) -> Any:
    """The same value again; `find` gives the tensor of a number. Raises ValueError for what `to_text` did not write."""
    return _built(json.loads(text), find)


def _described(value: Any, path: str, keep: Keep) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)  # also numpy's, and exact: JSON has as many digits as it takes
    if isinstance(value, Tensor):
        return ["tensor", keep(value)]
    if type(value) in (list, tuple):
        return [type(value).__name__, *(_described(each, f"{path}[{i}]", keep) for i, each in enumerate(value))]
    if type(value) in (dict, Counter):
        pairs = [[_key(key, path), _described(each, f"{path}[{key!r}]", keep)] for key, each in value.items()]
        return ["dict" if type(value) is dict else "counter", *pairs]
    raise PipesvcError(ErrorCode.INVALID_JOB, f"{path} is a {type(value).__qualname__}, which cannot be saved")


def _key(key: Any, path: str) -> str | int:
    if type(key) in (str, int):
        return key  # type: ignore[no-any-return]
    raise PipesvcError(ErrorCode.INVALID_JOB, f"{path} has a key of type {type(key).__qualname__}, not saved")


def _built(tree: Any, find: Find) -> Any:
    match tree:
        case ["tensor", int(number)]:
            return find(number)
        case ["list", *items]:
            return [_built(each, find) for each in items]
        case ["tuple", *items]:
            return tuple(_built(each, find) for each in items)
        case ["dict", *pairs]:
            return {key: _built(each, find) for key, each in pairs}
        case ["counter", *pairs]:
            return Counter({key: _built(each, find) for key, each in pairs})
        case None | bool() | int() | float() | str():
            return tree
    raise ValueError(f"{str(tree)[:80]!r} stands for nothing")
