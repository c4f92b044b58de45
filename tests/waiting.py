"""Waiting for what announces itself to nobody, by name and with a limit, so that a test fails and does not hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LIMIT_S: Final = 90.0
_PAUSE_S: Final = 0.05


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {limit_s:g} s"
        time.sleep(_PAUSE_S)
