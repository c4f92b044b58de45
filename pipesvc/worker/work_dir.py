"""Where a worker keeps the files of its runs.

An agent that is killed cannot remove its directory, and neither name nor age says whether one is in use. So each agent
holds a lock on its own, which the kernel gives up with the process: what is not locked is left over, and the next agent
of the same user removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "pipesvc-worker-"
_SWEEP_AGE_S: Final = 60.0


@contextlib.contextmanager
def fresh() -> Iterator[Path]:
    """A directory of this process, removed at the end; those of agents that were killed are removed first."""
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{_PREFIX}*"):
        _sweep(left)
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _sweep(left: Path) -> None:
    """Remove a work directory whose agent is gone; one that is in use, or not ours, stays."""
    try:
        lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        status = os.fstat(lock)
        # A young one may not be locked yet.
        if status.st_uid == os.getuid() and time.time() - status.st_mtime > _SWEEP_AGE_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
