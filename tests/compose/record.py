"""Commands and what they said, kept for people: a claim that containers work is worth as much as the log of a real run.

The log names the commit and the command, and no place of the machine that it was made on.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# Said by podman with every container where systemd is absent; health checks then run when they are asked for.
NOISE: Final = ("unable to get systemd connection", "failed to connect to syslog")
MAX_LINES: Final = 30


class Record:
    """Runs commands from `root` and notes them; `scratch` is a folder for what lasts as long as the record."""

    def __init__(self, root: Path, scratch: Path, environment: Mapping[str, str]) -> None:
        self.root: Final = root
        self.scratch: Final = scratch
        self._environment: Final = {**os.environ, **environment}
        self._lines: Final[list[str]] = []

    def note(self, text: str) -> None:
        text = text.replace(str(self.root), ".").replace(str(self.scratch), "SCRATCH")
        self._lines.append(text)
        print(text, flush=True)

    def run(
        self,
        *command: str,
        limit_s: float,
        is_checked: bool = True,
        is_shown: bool = True,
        changes: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """The ended command. Its output is noted unless it is not to be shown; a failure always is."""
        changes = changes or {}
        started = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**self._environment, **changes},
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
        words = [*(f"{name}={value}" for name, value in changes.items()), Path(command[0]).name, *command[1:]]
        self.note(f"$ {shlex.join(words)}")
        if is_shown or (is_checked and done.returncode != 0):
            self._note_output(done.stdout + done.stderr)
        self.note(f"[exit {done.returncode}, {time.monotonic() - started:.1f} s]")
        if is_checked:
            assert done.returncode == 0, f"{shlex.join(words)} failed, see above"
        return done

    def write(self, path: Path, header: Sequence[str]) -> None:
        path.write_text("\n".join([*header, "", *self._lines, ""]))

    def _note_output(self, output: bytes) -> None:
        lines = output.decode(errors="replace").splitlines()
        lines = [line.rstrip() for line in lines if not any(words in line for words in NOISE)]
        if len(lines) > MAX_LINES:
            lines = [f"({len(lines) - MAX_LINES} lines left out)", *lines[-MAX_LINES:]]
        for line in lines:
            self.note(f"  {line}" if line else "")
