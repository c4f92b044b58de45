"""The numbers and texts of a job, and what they may be.

Python and JSON know numbers and texts of any kind; those of a job travel in fields of a given width, and an error of
such a field names no field of the user's.
"""

from __future__ import annotations

import sys
from typing import Final, TypeGuard

from pipesvc.client.calls import refuse

# Batches, and slices of one; the coordinator refuses more.
MAX_CAPACITY: Final = 65_536
MAX_MICRO_BATCHES: Final = 65_536
# Of whatever else is counted; as it travels.
MAX_COUNT: Final = 2**31 - 1
MAX_STEPS: Final = 2**63 - 1
MAX_SEED: Final = 2**63 - 1


def check_whole(name: str, value: object, low: int, fix: str = "", *, high: int = MAX_COUNT) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise refuse(f"{name} is {value!r}; it must be a whole number of {low} or more", fix)
    if value > high:  # perhaps one of more digits than Python prints
        raise refuse(f"{name} is more than {high}", fix)


def check_duration(name: str, value: object) -> None:
    if not is_positive(value):
        raise refuse(f"{name} is {value!r}; it must be a positive number of seconds")


def is_positive(value: object) -> TypeGuard[float]:
    """True for a number above 0 that a float can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def check_text(name: str, value: str) -> None:
    """Python and JSON know halves of a character, which travel nowhere."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refuse(f"{name} is {value!r}, which has half a character in it") from None
