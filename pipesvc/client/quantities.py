"""Times and parts as people read them: three digits and a unit. Bytes: `core.memory.bytes_text`."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """ "0 s", "250 us", "1.25 ms", "43.2 s"."""
    if not seconds:
        return "0 s"
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds)} s"


def part_text(part: float) -> str:
    """ "12.5 %" of 0.125."""
    return f"{100 * part:.1f} %"


def _three_digits(number: float) -> str:
    num_decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{num_decimals}f}"
