"""A file of weights as it is written: whole or not at all, where that can be had.

A regular file is made beside its place and then moved there, so that a broken transfer leaves the old one. What is no
regular file (a pipe, a device, this process's own output) must not be replaced by one: it is written as it stands.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Names of descriptors. Behind one may be a regular file, but its holder would not follow a move.
_DESCRIPTORS: Final = ("/dev/fd/", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/proc/")


def is_replaced(path: Path) -> bool:
    """True where a regular file, or nothing yet, is at the path or at the end of its symbolic links."""
    if os.path.abspath(path).startswith(_DESCRIPTORS):
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


@contextmanager
def writing(path: Path) -> Iterator[Callable[[bytes], object]]:
    """A function that appends; errors of the file system name the path as it was given."""
    try:
        if is_replaced(path):
            yield from _replacing(Path(os.path.realpath(path)))
        else:
            with os.fdopen(os.open(path, os.O_WRONLY), "wb") as file:
                yield file.write
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replacing(target: Path) -> Iterator[Callable[[bytes], object]]:
    draft = target.with_name(f".{target.name}.part")
    try:
        with draft.open("wb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file.write
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
