"""Files with weights that clients have sent, each under its hash, for as long as a live run names it.

STATE/weights/SHA256.safetensors
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO, Final

from pipesvc.coordinator.trash import Trash

# A client that has sent a file submits its job soon.
_MIN_AGE_S: Final = 3600.0
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class SourceFiles:
    """Plain blocking calls."""

    def __init__(self, folder: Path, trash: Trash) -> None:
        self._folder = folder
        self._trash = trash
        folder.mkdir(exist_ok=True)
        for draft in folder.glob("*.partial"):
            trash.put(draft)

    def path(self, sha256: str) -> Path | None:
        """None for what is no hash."""
        return self._folder / f"{sha256}.safetensors" if _SHA256.fullmatch(sha256) else None

    def renew(self, sha256: str) -> bool:
        """True: it is here, and as if it had come now, so that it stays until its job names it."""
        path = self.path(sha256)
        try:
            if path is None:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def begin(self) -> IO[bytes]:
        return tempfile.NamedTemporaryFile(dir=self._folder, suffix=".partial", delete=False)

    def end(self, draft: IO[bytes], sha256: str) -> None:
        path = self.path(sha256)
        assert path is not None
        draft.flush()
        os.fsync(draft.fileno())
        os.replace(draft.name, path)

    def close(self, draft: IO[bytes]) -> None:
        draft.close()
        with contextlib.suppress(OSError):
            os.unlink(draft.name)

    def keep_only(self, named: Collection[str]) -> None:
        """Drop the files that no live run names."""
        for path in self._folder.glob("*.safetensors"):
            with contextlib.suppress(OSError):
                if path.stem not in named and time.time() - path.stat().st_mtime > _MIN_AGE_S:
                    self._trash.put(path)
