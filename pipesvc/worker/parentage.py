"""Two requests to the kernel about parents and children that Python has no words for.

A process that is killed cannot end its children; the kernel can, when it was asked to before.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent(parent_pid: int, number: signal.Signals) -> None:
    """Have that signal sent when the parent ends, which it may have done before this is asked."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        raise SystemExit("the parent process is gone")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, and so the one who reaps them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")
