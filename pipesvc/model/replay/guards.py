"""`device_guard` in forward: what runs inside the block belongs to the stage of its label.

A guard that opens counts as a unit without parameters, whose mark is the label. So operations inside it have a
position of their own, and the units of one label become one stage by the same rule as units that were built under a
guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipesvc.core.plan import LayerInfo
from pipesvc.model import marks

GUARD_TYPE = "device_guard"


class GuardInsideUnitError(BaseException):
    """A unit's forward opens a guard, so it is no unit. Not an Exception: user code must not catch it."""


@contextmanager
def guards_seen_by(entered: Callable[[str], None]) -> Iterator[None]:
    token = marks.on_enter.set(entered)
    try:
        yield
    finally:
        marks.on_enter.reset(token)


def unit_of_guard(label: str) -> LayerInfo:
    return LayerInfo(name=f'device_guard("{label}")', type=GUARD_TYPE, mark=label)
