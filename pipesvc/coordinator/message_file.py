"""Messages of one kind in one file, appended as they come and bounded: log lines and trace events.

A run prints for weeks, and a reader may ask in the middle of it. So each message lies in the file behind its length,
a reader goes on where it stopped, and a file that has reached its bound takes nothing more and says so once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LENGTH_BYTES: Final = 4
_READ_BYTES: Final = 1 << 20


class MessageFile:
    """The writing end; one per file."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = path.open("ab")
        self._num_bytes = self._file.tell()
        self.is_full = False

    def append(self, messages: Sequence[bytes], last_message: bytes = b"") -> bool:
        """Write these, or what the bound allows and then, once, `last_message`. True: this call reached the bound."""
        if self.is_full:
            return False
        for message in messages:
            if self._num_bytes + len(message) + _LENGTH_BYTES > self._max_bytes:
                self.is_full = True
                if last_message:
                    self._write(last_message)
                break
            self._write(message)
        self._file.flush()
        return self.is_full

    def close(self) -> None:
        self._file.close()

    def _write(self, message: bytes) -> None:
        self._file.write(len(message).to_bytes(_LENGTH_BYTES, "little"))
        self._file.write(message)
        self._num_bytes += _LENGTH_BYTES + len(message)


def read_messages(path: Path, offset: int) -> tuple[list[bytes], int]:
    """The whole messages from `offset` on, up to about a MiB of them, and where to go on; none if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_READ_BYTES)
            if len(data) >= _LENGTH_BYTES:
                needed = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
                data += file.read(max(0, needed - len(data)))
    except FileNotFoundError:
        return [], offset
    messages, begin = [], 0
    while begin + _LENGTH_BYTES <= len(data):
        end = begin + _LENGTH_BYTES + int.from_bytes(data[begin : begin + _LENGTH_BYTES], "little")
        if end > len(data):
            break
        messages.append(data[begin + _LENGTH_BYTES : end])
        begin = end
    return messages, offset + begin
