"""What was measured, on the disk: one file of costs for each device of a job and for each link.

A file is written whole or not at all, and one that cannot be read is one that is not there: it is measured anew. What
nobody has asked for in a long time goes, and of very many the longest unused: names are digests, which tell nobody
what may be removed by hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pipesvc.coordinator.limits import LINK_AGE_S, NUM_PROFILES, PROFILE_AGE_S
from pipesvc.coordinator.profile_parts import Wanted
from pipesvc.core.costs import Costs
from pipesvc.core.costs_json import from_json, to_json
from pipesvc.errors import PipesvcError


class ProfileStore:
    """Plain blocking calls."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder

    def load(self, wanted: Wanted) -> dict[str, Costs]:
        """The parts that are there, by their keys; a layer costs what it did, a network may have changed."""
        devices = {key: self._read(key, 0.0) for key in wanted.devices}
        links = {key: self._read(key, time.time() - LINK_AGE_S) for key in wanted.links}
        return {key: part for key, part in (devices | links).items() if part is not None}

    def save(self, parts: Mapping[str, Costs]) -> None:
        """An OSError leaves files whole. Files that are old, or too many, are removed."""
        self.folder.mkdir(exist_ok=True)
        for key, part in parts.items():
            draft = self.folder / f"{key}.partial"
            draft.write_text(to_json(part))
            draft.replace(self._path(key))
        self._prune()

    def _prune(self) -> None:
        used = {}
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                stat = path.stat()
                used[path] = max(stat.st_atime, stat.st_mtime)
        newest_first = sorted(used, key=lambda path: used[path], reverse=True)
        oldest = time.time() - PROFILE_AGE_S
        for index, path in enumerate(newest_first):
            if index >= NUM_PROFILES or used[path] < oldest:
                path.unlink(missing_ok=True)

    def _read(self, key: str, since_unix_s: float) -> Costs | None:
        path = self._path(key)
        try:
            written_s = path.stat().st_mtime
            if written_s < since_unix_s:
                return None
            costs = from_json(path.read_text())
            with suppress(OSError):
                os.utime(path, (time.time(), written_s))  # file systems may not note that it was read
            return costs
        except (OSError, UnicodeDecodeError, PipesvcError):
            return None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"
