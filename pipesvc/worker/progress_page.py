"""The newest progress of a child, in memory that its agent reads when it beats, and when the child has died.

A message for each action would wake the agent as often as tensors do, to be told what nobody asks most of the time. The
writer writes over what was there before; a checksum tells the reader whether it has looked in the middle of that.

What an executor has done with its time lies beside it. So does the one thing that the agent tells the child in the same
way, since the child asks only when it has waited: how long its parcels have waited for credit at the agent.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import Final

from pipesvc.rpc.v1 import local_pb2

_HEADER: Final = struct.Struct("<II")  # length, CRC-32
_CREDIT: Final = struct.Struct("<QQ")  # `wire.credit_waits.CreditWaits.parts`, on CLOCK_MONOTONIC
# Where each of the three is.
_PROGRESS: Final = 0
_TIMES: Final = 4096
_WAITS: Final = 6144
_BYTES: Final = 8192
_MOST_WORDS: Final = 1000
_NUM_TRIES: Final = 5


class ProgressPage:
    """The child's. `descriptor` goes to the agent once, and is closed then."""

    def __init__(self) -> None:
        self.descriptor: Final = os.memfd_create("pipesvc-progress", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, _BYTES)
        self._memory = mmap.mmap(self.descriptor, _BYTES)
        self._credit_waits = (0, 0)

    def write(self, progress: local_pb2.Progress) -> None:
        if len(progress.awaiting) > _MOST_WORDS:
            progress.awaiting = progress.awaiting[:_MOST_WORDS]
        _write(self._memory, _PROGRESS, progress.SerializeToString())

    def write_times(self, times: local_pb2.ExecutorTimes) -> None:
        _write(self._memory, _TIMES, times.SerializeToString())

    @property
    def credit_waits(self) -> tuple[int, int]:
        """The `CreditWaits.parts` that the agent has written."""
        data = _read(self._memory, _WAITS)
        if data is not None:
            self._credit_waits = _CREDIT.unpack(data)
        return self._credit_waits

    def close(self) -> None:
        self._memory.close()


class ProgressView:
    """The agent's. Takes the descriptor over and closes it."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._memory = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)
        self._last: local_pb2.Progress | None = None
        self._times: local_pb2.ExecutorTimes | None = None

    def read(self) -> local_pb2.Progress | None:
        """The newest that is whole; None before the first."""
        data = _read(self._memory, _PROGRESS)
        if data is not None:
            self._last = local_pb2.Progress.FromString(data)
        return self._last

    def times(self) -> local_pb2.ExecutorTimes | None:
        """The newest that are whole; None before the first, and of a child that is no executor."""
        data = _read(self._memory, _TIMES)
        if data is not None:
            self._times = local_pb2.ExecutorTimes.FromString(data)
        return self._times

    def write_credit_waits(self, parts: tuple[int, int]) -> None:
        """To nobody, once it is closed."""
        if not self._memory.closed:
            _write(self._memory, _WAITS, _CREDIT.pack(*parts))

    def close(self) -> None:
        self._memory.close()


def _write(memory: mmap.mmap, begin: int, data: bytes) -> None:
    memory[begin : begin + _HEADER.size + len(data)] = _HEADER.pack(len(data), zlib.crc32(data)) + data


def _read(memory: mmap.mmap, begin: int) -> bytes | None:
    """None: nothing is there, or the writer is at it."""
    for _ in range(_NUM_TRIES):
        length, checksum = _HEADER.unpack_from(memory, begin)
        data = memory[begin + _HEADER.size : begin + _HEADER.size + length]
        if length and zlib.crc32(data) == checksum:
            return data
    return None
