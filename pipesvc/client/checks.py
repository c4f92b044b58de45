"""What a value that a user gives must be, and the one line that refuses another.

A user may give anything that Python has: a number of ten thousand digits, a list that contains itself, an optimizer
whose text has a dozen lines, a word where a switch belongs. Each check here takes the name of the field and the value
as it came, and its refusal says the field, what was given, and what is valid.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import isfinite
from typing import Final, TypeGuard

from pipesvc.errors import ErrorCode, PipesvcError

# What fields of the wire hold: of 32 bits, and of 64 bits with a sign.
MAX_COUNT: Final = 2**32 - 1
MAX_NUMBER: Final = 2**63 - 1
# Seconds of a wait, characters of a name. The coordinator refuses more.
MAX_WAIT_S: Final = 30 * 24 * 3600.0
MAX_TEXT: Final = 200
# Characters of what may be a path or a list; a command line and a file system take no more.
MAX_LONG_TEXT: Final = 4096
# Characters of a value in a refusal.
_MAX_SHOWN: Final = 80


def refuse(message: str, advice: str = "") -> PipesvcError:
    """The one error of a job that contradicts itself."""
    return PipesvcError(ErrorCode.INVALID_JOB, message, advice=advice)


def refusal(name: str, value: object, valid: str, advice: str = "") -> PipesvcError:
    return refuse(f"{name} is {shown(value)}; it must be {valid}", advice)


def shown(value: object) -> str:
    """The value in a few words on one line, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of user code, or of a number that Python does not write
        return f"a value of {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def is_a(name: str, value: object, kind: type | tuple[type, ...], valid: str, advice: str = "") -> None:
    if not isinstance(value, kind):
        raise refusal(name, value, valid, advice)


def flag(name: str, value: object) -> None:
    """A word would do as well for Python, and "False" would mean yes."""
    is_a(name, value, bool, "True or False")


def one_of(name: str, value: object, valid: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in valid:
        raise refusal(name, value, f"one of {', '.join(valid)}")


def whole(name: str, value: object, low: int, high: int = MAX_COUNT, *, advice: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refusal(name, value, f"a whole number from {low} to {high}", advice)


def whole_or_none(name: str, value: object, low: int, high: int = MAX_COUNT) -> None:
    if value is not None:
        whole(name, value, low, high)


def positive(name: str, value: object) -> None:
    if not _is_positive(value):
        raise refusal(name, value, "a positive number")


def duration(name: str, value: object) -> None:
    if not _is_positive(value) or value > MAX_WAIT_S:
        raise refusal(name, value, f"a positive number of seconds, {MAX_WAIT_S:.0f} at most")


def text(name: str, value: object, advice: str = "", *, most: int = MAX_TEXT) -> None:
    """What is shown to people and found again by name; control characters would change their terminals."""
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= most:
        raise refusal(name, value, f"printable text of 1 to {most} characters", advice)


def sequence(name: str, value: object, valid: str, advice: str = "") -> None:
    """Things in an order that can be read twice. Python counts text and bytes among them, which are one thing."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise refusal(name, value, valid, advice)


def path(name: str, value: object) -> None:
    try:
        is_path = not isinstance(value, bytes) and b"\0" not in os.fsencode(value)  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        is_path = False
    if not is_path:
        raise refusal(name, value, "a path, as text or as a pathlib.Path")


def _is_positive(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value) and value > 0
    except OverflowError:  # an int beyond what a float holds
        return False
