"""Shared memory between an agent and its children: anonymous memfd segments, passed by descriptor.

`multiprocessing.shared_memory` gives segments names that must be swept after a crash, keeps them in a /dev/shm that a
container bounds at 64 MiB, and in Python 3.11 unlinks a segment when a mere attacher exits. A memfd has no name: the
kernel frees it with the last process that holds it, also after SIGKILL.

The creator of a segment owns it: `SegmentPool` hands out segments and takes them back when the peer says it is done.
The receiver maps each once, by number, in a `SegmentMap`. Sizes are powers of two, so that one segment serves many
tensors (pages that nothing wrote cost nothing), and the segment released last, whose pages are warm, is used first. A
mapping holds a descriptor of its own in each process; the pool's other one is closed when the peer has shown that it
has the segment. Neither class is for several threads at once.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass, replace
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError

_MIN_BYTES: Final = mmap.PAGESIZE
# Nobody can cut the memory off under a reader.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Segment:
    """One shared piece of memory. `view` is writable and covers all of it; slice it to the bytes needed."""

    segment_id: int
    size: int
    fd: int  # -1 once the peer has it
    view: memoryview
    is_new: bool  # the peer does not know this segment yet: send the descriptor along


class SegmentPool:
    """Segments made by this process. Numbers start at 1, for 0 means "no segment" in messages."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._free: dict[int, list[int]] = {}
        self._in_use: set[int] = set()
        self._is_closed = False

    def allocate(self, num_bytes: int) -> Segment:
        """A segment of at least this size, its content undefined."""
        if self._is_closed:
            raise PipesvcError(ErrorCode.INTERNAL, "a segment was asked of a closed pool")
        size = segment_bytes(num_bytes)
        free = self._free.get(size)
        if free:
            segment = self._segments[free.pop()]
        else:
            segment = _create(len(self._segments) + 1, size)
            self._segments[segment.segment_id] = segment
        self._in_use.add(segment.segment_id)
        return segment

    def take_back(self, segment: Segment) -> None:
        """The segment was not sent after all."""
        self._in_use.remove(segment.segment_id)
        self._free.setdefault(segment.size, []).append(segment.segment_id)

    def release(self, segment_id: int) -> None:
        """The peer is done with a segment that was sent to it. After close() this does nothing: it may come late."""
        if self._is_closed:
            return
        if segment_id not in self._in_use:
            raise PipesvcError(ErrorCode.INTERNAL, f"segment {segment_id} was released but is not in use")
        self._in_use.remove(segment_id)
        segment = self._segments[segment_id]
        if segment.is_new:
            os.close(segment.fd)
            self._segments[segment_id] = replace(segment, fd=-1, is_new=False)
        self._free.setdefault(segment.size, []).append(segment_id)

    @property
    def num_in_use(self) -> int:
        return len(self._in_use)

    def close(self) -> None:
        """Close the descriptors. Memory under views that still live stays until they die."""
        self._is_closed = True
        for segment in self._segments.values():
            if segment.is_new:
                os.close(segment.fd)
        self._segments.clear()
        self._free.clear()
        self._in_use.clear()


class SegmentMap:
    """Segments made by the peer, by its numbers."""

    def __init__(self) -> None:
        self._views: dict[int, memoryview] = {}

    def attach(self, segment_id: int, fd: int, size: int) -> None:
        """Map a segment. Takes the descriptor over and closes it, also on failure."""
        try:
            if segment_id in self._views:
                raise PipesvcError(ErrorCode.BAD_FRAME, f"segment {segment_id} arrived twice")
            actual = os.fstat(fd).st_size
            if actual != size or size == 0:
                text = f"segment {segment_id} has {actual} bytes, announced were {size}"
                raise PipesvcError(ErrorCode.BAD_FRAME, text)
            self._views[segment_id] = memoryview(mmap.mmap(fd, size))
        finally:
            os.close(fd)

    def view(self, segment_id: int, num_bytes: int) -> memoryview:
        """A new view of the first bytes. It holds the mapping; a finalizer on it tells when its last user is gone."""
        view = self._views.get(segment_id)
        if view is None:
            raise PipesvcError(ErrorCode.BAD_FRAME, f"segment {segment_id} never arrived")
        if num_bytes > len(view):
            raise PipesvcError(ErrorCode.BAD_FRAME, f"{num_bytes} bytes of segment {segment_id}, which has {len(view)}")
        return view[:num_bytes]

    def close(self) -> None:
        """Forget all segments. Memory under views that still live stays mapped until they die."""
        self._views.clear()


def segment_bytes(num_bytes: int) -> int:
    """The size of the segment for so many bytes: the next power of two, a page at least."""
    return max(_MIN_BYTES, 1 << max(0, num_bytes - 1).bit_length())


def _create(segment_id: int, size: int) -> Segment:
    fd = os.memfd_create("pipesvc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        memory = mmap.mmap(fd, size)
    except (OSError, ValueError, OverflowError) as error:
        os.close(fd)
        raise PipesvcError(
            ErrorCode.INTERNAL,
            f"no shared segment of {size} bytes: {error}",
            advice="Use smaller micro-batches, or give the host more memory.",
        ) from error
    return Segment(segment_id, size, fd, memoryview(memory), True)
