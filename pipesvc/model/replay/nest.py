"""Walking and rebuilding the values that go in and out of modules.

torch's pytree takes a dataclass, or the output class of a library that did not register it, for a leaf, and would
lose the tensors in it. Containers here are lists, tuples (named ones too), dicts of every class and dataclasses;
anything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Path = tuple[str, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf with the keys and indices that lead to it, in the order of `transform`."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, str(key)))
    elif is_sequence(value):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, str(index)))
    elif is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from leaves(getattr(value, each.name), (*path, each.name))
    else:
        yield path, value


def tensors(value: Any) -> list[Tensor]:
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor)]


def transform(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest with each leaf changed. What holds no changed leaf stays the very object that it was."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {key: new for key, each in value.items() if (new := transform(each, change)) is not each}
        if not changed:
            return value
        another = copy.copy(value)
        for key, new in changed.items():
            another[key] = new
        return another
    if is_sequence(value):
        items = [transform(each, change) for each in value]
        if all(new is each for new, each in zip(items, value, strict=True)):
            return value
        return _sequence(value, items)
    if is_dataclass(value):
        return _dataclass(value, change)
    return change(value)


def is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple) or (isinstance(value, list | tuple) and not _is_size(value))


def is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_size(value: Any) -> bool:
    return type(value).__name__ == "Size" and type(value).__module__ == "torch"


def _sequence(value: Any, items: list[Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(items)
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*items)
    return type(value)(items)  # a subclass, or what torch.max and its kind return


def _dataclass(value: Any, change: Callable[[Any], Any]) -> Any:
    another = value
    for each in dataclasses.fields(value):
        old = getattr(value, each.name)
        new = transform(old, change)
        if new is not old:
            if another is value:
                another = copy.copy(value)
            object.__setattr__(another, each.name, new)
    return another
