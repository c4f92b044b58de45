"""Ctrl-C around gRPC.

A KeyboardInterrupt that lands while a channel closes leaves gRPC's locks half taken, and its destructors then wait for
ever. So closing is not interrupted, only followed by the interrupt; and a command that was interrupted ends without
running destructors at all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

# Shells and tests know 130 as "ended by Ctrl-C".
INTERRUPTED: Final = 130
# Seconds after which one more Ctrl-C is meant, and not an echo of the first: process groups and wrappers send several.
_ECHO_S: Final = 1.0

_first_s: float | None = None


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """An interrupt within comes after. In threads other than the main one none comes anyway."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if seen:
        previous(signal.SIGINT, None)


def only_first() -> None:
    """For a command: the first Ctrl-C is a KeyboardInterrupt, echoes are ignored, a later one ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def leave() -> NoReturn:
    """End this interrupted process now, without destructors."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _first_s
    now_s = time.monotonic()
    if _first_s is None:
        _first_s = now_s
        raise KeyboardInterrupt
    if now_s - _first_s >= _ECHO_S:
        os._exit(INTERRUPTED)
