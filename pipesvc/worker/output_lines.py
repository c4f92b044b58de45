"""What a child prints, line by line, as it comes.

Reading to the end of a pipe would show nothing until the child is gone, and unbounded lines (progress bars, binary
junk) would fill the agent. So lines are cut at `MAX_LINE_CHARS`, and of a line that overwrites itself only the last
state is kept.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

MAX_LINE_CHARS: Final = 8_192
_READ_BYTES: Final = 65_536


class OutputLines:
    """Reads one pipe on the event loop and owns its descriptor. Lines of one read come in one call."""

    def __init__(self, descriptor: int, on_lines: Callable[[list[str]], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._on_lines = on_lines
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._is_open = True
        self._is_reading = False
        self.resume()

    def pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        if self._is_open and not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._descriptor, self._read)

    def finish(self) -> None:
        """Take what is in the pipe, the unfinished last line included, and close it."""
        while self._is_open and self._read():
            pass
        self._close()

    def _read(self) -> bool:
        """One read; False when nothing more is there now."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_CHARS:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._on_lines([_as_text(line) for line in lines])
        return True

    def _close(self) -> None:
        if not self._is_open:
            return
        self.pause()
        self._is_open = False
        os.close(self._descriptor)
        if self._rest:
            self._on_lines([_as_text(self._rest)])


def _as_text(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace").rstrip("\r")
    return text.rpartition("\r")[2][:MAX_LINE_CHARS]
