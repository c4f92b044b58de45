"""How the tensors of a parcel nest, as JSON.

A stage may return a tensor, a tuple or a dict, and a batch may be any of them. Pickle would carry all that and run
code on arrival; this carries exactly the listed types and refuses the rest by name. A tensor is `["tensor"]`, a
container is a list that begins with its type's name, and None, bool, int and str are themselves:

    (x, {"m": m, "scale": 0.5})  ->  ["tuple",["tensor"],["dict",["m",["tensor"]],["scale",["float","0x1...p-1"]]]]

Floats travel in hexadecimal, so that they are exact and NaN and infinities stay valid JSON. Tensors are numbered in
the order of the text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from pipesvc.errors import ErrorCode, PipesvcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Leaf = TypeVar("Leaf")

MAX_STRUCTURE_BYTES: Final = 48 << 10  # fits into the header of a frame
MAX_DEPTH: Final = 32
MAX_INT_BITS: Final = 64
# What nearly every parcel is needs no parsing.
_ONE_TENSOR: Final = '["tensor"]'

_ADVICE: Final = "Allowed are tensors in dicts with str keys, lists and tuples, beside None, bool, int, float and str."


def flatten(value: Any, is_leaf: Callable[[Any], bool]) -> tuple[str, list[Any]]:
    """The structure as JSON (ASCII) and the leaves in its order."""
    if is_leaf(value):
        return _ONE_TENSOR, [value]
    leaves: list[Any] = []
    structure = json.dumps(_describe(value, is_leaf, leaves, "value", 0), separators=(",", ":"))
    if len(structure) > MAX_STRUCTURE_BYTES:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the structure around {len(leaves)} tensors takes {len(structure)} of {MAX_STRUCTURE_BYTES} bytes",
            advice="Put the numbers or texts into fewer tensors.",
        )
    return structure, leaves


def unflatten(structure: str, leaves: Sequence[Any]) -> Any:
    """The value again, with `leaves` in their places."""
    if structure == _ONE_TENSOR and len(leaves) == 1:
        return leaves[0]
    if len(structure) > MAX_STRUCTURE_BYTES:
        _malformed(f"{len(structure)} bytes")
    try:
        tree = json.loads(structure)
    except (ValueError, RecursionError):
        _malformed("no JSON")
    remaining = iter(leaves)
    try:
        value = _build(tree, remaining, 0)
    except StopIteration:
        _malformed(f"more than the {len(leaves)} tensors that arrived")
    num_left = sum(1 for _ in remaining)
    if num_left:
        _malformed(f"{num_left} of {len(leaves)} tensors have no place")
    return value


def _describe(value: Any, is_leaf: Callable[[Any], bool], leaves: list[Any], path: str, depth: int) -> Any:
    if is_leaf(value):
        leaves.append(value)
        return ["tensor"]
    if depth > MAX_DEPTH:
        raise PipesvcError(ErrorCode.INVALID_JOB, f"{path} nests deeper than {MAX_DEPTH} levels", advice=_ADVICE)
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int and value.bit_length() <= MAX_INT_BITS:
        return value
    if kind is float:
        return ["float", value.hex()]
    if kind is list or kind is tuple:
        parts = [_describe(item, is_leaf, leaves, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        return [kind.__name__, *parts]
    if kind is dict and all(type(key) is str for key in value):
        entries = value.items()
        return ["dict", *([k, _describe(v, is_leaf, leaves, f"{path}[{k!r}]", depth + 1)] for k, v in entries)]
    text = f"{path} is {_unfit(value)}, which cannot travel between stages"
    raise PipesvcError(ErrorCode.INVALID_JOB, text, advice=_ADVICE)


def _unfit(value: Any) -> str:
    if type(value) is int:
        return f"an int of {value.bit_length()} bits"
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if type(value) is dict:
        key = next(key for key in value if type(key) is not str)
        return f"a dict with a key of type {type(key).__qualname__}"
    return f"of type {name}"


def _build(tree: Any, leaves: Iterator[Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        _malformed(f"more than {MAX_DEPTH} levels")
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    if not isinstance(tree, list) or not tree:
        _malformed(f"{str(tree)[:80]!r} stands for nothing")
    match tree:
        case ["tensor"]:
            return next(leaves)
        case ["float", str(text)]:
            return _float(text)
        case ["list", *items]:
            return [_build(item, leaves, depth + 1) for item in items]
        case ["tuple", *items]:
            return tuple([_build(item, leaves, depth + 1) for item in items])
        case ["dict", *items]:
            return _dict(items, leaves, depth)
    _malformed(f"{str(tree)[:80]!r} stands for nothing")


def _dict(items: list[Any], leaves: Iterator[Any], depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for item in items:
        match item:
            case [str(key), value] if key not in result:
                result[key] = _build(value, leaves, depth + 1)
            case _:
                _malformed(f"{str(item)[:80]!r} is no entry of a dict")
    return result


def _float(text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError):
        _malformed(f"{text[:80]!r} is no float")


def _malformed(message: str) -> NoReturn:
    raise PipesvcError(ErrorCode.BAD_FRAME, f"malformed structure of a parcel: {message}")
