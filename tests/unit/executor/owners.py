"""Workers of the stages, where a schedule is defined for several on each."""

from __future__ import annotations

OWNERS = {
    ("Interleaved1F1B", 2): "aa",
    ("Interleaved1F1B", 3): "aaa",
    ("Interleaved1F1B", 4): "abab",
    ("ZBV", 2): "aa",
    ("ZBV", 4): "abba",
}


def owners_of(schedule: str, num_stages: int) -> list[str]:
    """None: each stage has a worker of its own."""
    return list(OWNERS.get((schedule, num_stages), ""))
