"""The newest progress of a child, in memory that its agent reads when it beats, and when the child has died.

A message for each action would wake the agent as often as tensors do, to be told what nobody asks most of the time. The
child writes over what it wrote before; a checksum tells the reader whether it has looked in the middle of that.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import Final

from pipesvc.rpc.v1 import local_pb2

_BYTES: Final = 4096
_HEADER: Final = struct.Struct("<II")  # length, CRC-32
_MOST_WORDS: Final = 1000
_NUM_TRIES: Final = 5


class ProgressPage:
    """The child's. `descriptor` goes to the agent once, and is closed then."""

    def __init__(self) -> None:
        self.descriptor: Final = os.memfd_create("pipesvc-progress", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, _BYTES)
        self._memory = mmap.mmap(self.descriptor, _BYTES)

    def write(self, progress: local_pb2.Progress) -> None:
        if len(progress.awaiting) > _MOST_WORDS:
            progress.awaiting = progress.awaiting[:_MOST_WORDS]
        data = progress.SerializeToString()
        self._memory[: _HEADER.size + len(data)] = _HEADER.pack(len(data), zlib.crc32(data)) + data


class ProgressView:
    """The agent's. Takes the descriptor over and closes it."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._memory = mmap.mmap(descriptor, _BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._last: local_pb2.Progress | None = None

    def read(self) -> local_pb2.Progress | None:
        """The newest that is whole; None before the first."""
        for _ in range(_NUM_TRIES):
            length, checksum = _HEADER.unpack_from(self._memory)
            data = self._memory[_HEADER.size : _HEADER.size + length]
            if length and zlib.crc32(data) == checksum:
                self._last = local_pb2.Progress.FromString(data)
                break
        return self._last
