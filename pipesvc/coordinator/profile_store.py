"""What was measured, on the disk: one file of costs for each device of a job and for each link.

A file is written whole or not at all, and one that cannot be read is one that is not there: it is measured anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipesvc.coordinator.limits import LINK_AGE_S
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
        """An OSError leaves files whole."""
        self.folder.mkdir(exist_ok=True)
        for key, part in parts.items():
            draft = self.folder / f"{key}.partial"
            draft.write_text(to_json(part))
            draft.replace(self._path(key))

    def _read(self, key: str, since_unix_s: float) -> Costs | None:
        try:
            if self._path(key).stat().st_mtime < since_unix_s:
                return None
            return from_json(self._path(key).read_text())
        except (OSError, UnicodeDecodeError, PipesvcError):
            return None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"
