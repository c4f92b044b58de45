"""Values out of parsed JSON, read strictly: what is not exactly as it was written is refused by the field's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from pipesvc.errors import PipesvcError

T = TypeVar("T")


def read_fields(
    kind: type[T], raw: object, read_value: Callable[[Any, object, str], Any], malformed: Callable[[str], PipesvcError]
) -> T:
    """A value of this dataclass: all its fields are there, none more.

    `read_value` makes a field of its type hint, what was parsed, and its place for a refusal; `malformed` makes the
    refusal of what is wrong.
    """
    if not isinstance(raw, dict):
        raise malformed(f"has no object for a {kind.__name__}")
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if raw.keys() != names:
        differing = ", ".join(sorted(str(name) for name in raw.keys() ^ names))
        raise malformed(f"differs from a {kind.__name__} in {differing}")
    hints = get_type_hints(kind)
    return kind(**{name: read_value(hints[name], value, f"{name} of a {kind.__name__}") for name, value in raw.items()})
