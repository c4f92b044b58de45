"""What goes wrong in a command, as one line that says what, where and what to do.

Errors of pipesvc bring all three. Those of files are Python's own: scripts that call `save_weights` or read a schedule
catch them as they catch those of `open`. They say what and where, so here each kind gets its way out.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Final, TextIO

from pipesvc.errors import PipesvcError, printable

_NOT_YOURS: Final = "Name another place, or have its owner let you in"
_WAYS_OUT: Final = {
    errno.ENOENT: "Make its folder first, or name another place",
    errno.ENOTDIR: "Name another place: a part of this path is a file",
    errno.EISDIR: "It is a folder: name a file in it",
    errno.EACCES: _NOT_YOURS,
    errno.EPERM: _NOT_YOURS,
    errno.EROFS: "Name a place that can be written to",
    errno.ENOSPC: "Free some space, or name a place on another disk",
    errno.EDQUOT: "Free some of your space, or name a place on another disk",
    errno.ENAMETOOLONG: "Name a shorter one",
}


def error_line(error: PipesvcError) -> str:
    """The error in one line, and where its traceback is."""
    text = " ".join(str(error).split())
    if error.details.traceback and error.details.where.run_id:
        text += f" (traceback: pipesvc logs {error.details.where.run_id})"
    return f"pipesvc: {text}"


def os_error_line(error: OSError) -> str:
    """The file that was asked for, what the system says of it, and the way out."""
    if error.filename is None:
        return f"pipesvc: {error}"
    path = printable(os.fsdecode(error.filename)).replace("\n", "\\n")
    way_out = _WAYS_OUT.get(error.errno or 0, "")
    return f"pipesvc: {path}: {error.strerror}" + (f". {way_out}" if way_out else "")


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"pipesvc: {category.__name__}: {message}", file=file or sys.stderr)
