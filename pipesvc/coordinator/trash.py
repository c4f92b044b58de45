"""Files that go: their paths are free at once, their bytes a little later, on another thread.

Removing the weights of a large model takes a file system seconds, in which the event loop would hear no beat of any
worker. What is to go is moved aside first, for its path may be wanted again before it is gone.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
from pathlib import Path
from typing import Final

_NAME_BYTES: Final = 8


class Trash:
    """A folder on the file system of what goes there; what an earlier process has left in it goes too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        for left in folder.iterdir():
            _remove_later(left)

    def put(self, path: Path) -> None:
        """Never raises; does nothing where nothing is."""
        aside = self._folder / secrets.token_hex(_NAME_BYTES)
        try:
            path.rename(aside)
        except FileNotFoundError:
            return
        except OSError:  # a full disk may have no room for one more name
            aside = path
        _remove_later(aside)


def _remove_later(path: Path) -> None:
    with contextlib.suppress(RuntimeError):  # no more threads: it goes at the next start
        threading.Thread(target=_remove, args=(path,), name="pipesvc-trash", daemon=True).start()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
