"""Messages of one kind in one file, appended as they come and bounded: log lines and trace events.

A run prints for weeks, and a reader may ask in the middle of it. So each message lies in the file behind its length,
a reader goes on where it stopped, and a file that has reached its bound takes nothing more and says so once.

A disk may be full in the middle of a message. Readers find their way by the lengths alone, so what could not be
written whole is taken back, and the next append tries anew.
"""

from __future__ import annotations

import contextlib
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
        # Without a buffer: what a failed write left there would come later, at a place of its own choice.
        self._file = path.open("ab", buffering=0)
        self._num_bytes = self._file.tell()
        self._is_torn = False
        self.is_full = False

    def append(self, messages: Sequence[bytes], last_message: bytes = b"") -> bool:
        """Write these, or what the bound allows and then, once, `last_message`. True: this call reached the bound.

        An OSError leaves the file as it was before the call.
        """
        if self.is_full:
            return False
        data, is_full = bytearray(), False
        for message in messages:
            if self._num_bytes + len(data) + len(message) + _LENGTH_BYTES > self._max_bytes:
                is_full = True
                if last_message:
                    data += framed(last_message)
                break
            data += framed(message)
        self._write(data)
        self.is_full = is_full
        return is_full

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytearray) -> None:
        """All of it or nothing."""
        if self._is_torn:
            self._untear()
        self._is_torn = True
        try:
            with memoryview(data) as left:
                num_written = 0
                while num_written < len(data):
                    num_written += self._file.write(left[num_written:]) or 0
        except OSError:
            # When even this fails, the next append begins with it.
            with contextlib.suppress(OSError):
                self._untear()
            raise
        self._is_torn = False
        self._num_bytes += len(data)

    def _untear(self) -> None:
        self._file.truncate(self._num_bytes)
        self._is_torn = False


def framed(message: bytes) -> bytes:
    """As a message lies in the file."""
    return len(message).to_bytes(_LENGTH_BYTES, "little") + message


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
