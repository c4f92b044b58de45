"""Segments across a real second process, and what is left when they are closed: nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.wire.segments import Segment, SegmentMap, SegmentPool, segment_bytes

PAGE = segment_bytes(0)

# Receives "id size num_bytes" with a descriptor, adds 1 to each byte, answers the id; nothing else travels.
PEER = """
import os, socket, sys
from pipesvc.wire.segments import SegmentMap
assert "torch" not in sys.modules and "grpc" not in sys.modules
peer = socket.socket(fileno=int(sys.argv[1]))
segments = SegmentMap()
while True:
    message, fds, _, _ = socket.recv_fds(peer, 100, 4)
    if not message:
        break
    segment_id, size, num_bytes = map(int, message.split())
    for fd in fds:
        segments.attach(segment_id, fd, size)
    view = segments.view(segment_id, num_bytes)
    view[:] = bytes((byte + 1) % 256 for byte in view)
    peer.send(b"%d" % segment_id)
segments.close()
del view
print([entry.name for entry in os.scandir("/proc/self/fd") if "memfd" in str(os.path.realpath(entry.path))])
"""


def num_memory_files() -> int:
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sum("memfd:pipesvc" in target for target in targets)


@pytest.fixture
def pool() -> Iterator[SegmentPool]:
    pool = SegmentPool()
    yield pool
    pool.close()


def test_sizes_are_powers_of_two_and_a_page_at_least() -> None:
    assert PAGE >= 4096
    assert [segment_bytes(size) for size in (0, 1, PAGE)] == [PAGE] * 3
    assert segment_bytes(PAGE + 1) == 2 * PAGE
    assert segment_bytes(3 << 20) == 4 << 20
    assert segment_bytes(4 << 20) == 4 << 20


def test_the_segment_released_last_is_used_first(pool: SegmentPool) -> None:
    first, second, other = pool.allocate(10), pool.allocate(PAGE), pool.allocate(PAGE + 1)
    assert [segment.segment_id for segment in (first, second, other)] == [1, 2, 3]
    assert [segment.size for segment in (first, second, other)] == [PAGE, PAGE, 2 * PAGE]
    for segment in (second, other, first):
        pool.release(segment.segment_id)
    assert pool.num_in_use == 0
    again = pool.allocate(1)
    assert (again.segment_id, again.is_new, again.fd) == (first.segment_id, False, -1)
    assert pool.allocate(1).segment_id == second.segment_id
    fresh = pool.allocate(1)
    assert (fresh.segment_id, fresh.is_new) == (4, True)
    assert pool.num_in_use == 3


def test_a_release_that_does_not_fit_is_refused(pool: SegmentPool) -> None:
    segment = pool.allocate(1)
    pool.release(segment.segment_id)
    for segment_id in (segment.segment_id, 77):
        with pytest.raises(PipesvcError, match=f"segment {segment_id} was released but is not in use") as caught:
            pool.release(segment_id)
        assert caught.value.code is ErrorCode.INTERNAL


def test_close_leaves_no_descriptor_and_tolerates_late_releases() -> None:
    before = num_memory_files()
    pool = SegmentPool()
    kept = pool.allocate(1).segment_id
    pool.release(pool.allocate(1).segment_id)
    assert num_memory_files() > before
    pool.close()
    assert num_memory_files() == before
    pool.release(kept)
    pool.close()
    with pytest.raises(PipesvcError, match="closed pool"):
        pool.allocate(1)


def test_memory_stays_for_a_view_that_outlives_the_pool_and_the_map() -> None:
    before = num_memory_files()
    pool, segments = SegmentPool(), SegmentMap()
    segment: Segment | None = pool.allocate(4)
    assert segment is not None
    segment.view[:4] = b"abcd"
    segments.attach(segment.segment_id, os.dup(segment.fd), segment.size)
    view = segments.view(segment.segment_id, 4)
    del segment
    pool.close()
    segments.close()
    assert bytes(view) == b"abcd"
    del view
    assert num_memory_files() == before


def test_a_finalizer_on_a_view_fires_with_its_last_holder() -> None:
    pool, segments = SegmentPool(), SegmentMap()
    segment = pool.allocate(4)
    segments.attach(segment.segment_id, os.dup(segment.fd), segment.size)
    view = segments.view(segment.segment_id, 4)
    finalizer = weakref.finalize(view, pool.release, segment.segment_id)
    inner = view[1:2]
    assert finalizer.alive
    del view
    assert not finalizer.alive, "a slice holds the mapping, not the view that it was cut from"
    del inner
    assert pool.num_in_use == 0
    pool.close()


def test_nobody_can_cut_a_segment_off(pool: SegmentPool) -> None:
    segment = pool.allocate(1)
    for size in (0, 2 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)


def test_what_does_not_fit_the_announcement_is_refused_and_its_descriptor_closed(pool: SegmentPool) -> None:
    segments = SegmentMap()
    segment = pool.allocate(1)
    before = num_memory_files()
    with pytest.raises(PipesvcError, match=f"segment 1 has {PAGE} bytes, announced were {2 * PAGE}"):
        segments.attach(1, os.dup(segment.fd), 2 * PAGE)
    assert num_memory_files() == before
    segments.attach(1, os.dup(segment.fd), PAGE)
    with pytest.raises(PipesvcError, match="segment 1 arrived twice"):
        segments.attach(1, os.dup(segment.fd), PAGE)
    with pytest.raises(PipesvcError, match="segment 2 never arrived"):
        segments.view(2, 1)
    with pytest.raises(PipesvcError, match=f"{PAGE + 1} bytes of segment 1, which has {PAGE}"):
        segments.view(1, PAGE + 1)
    segments.close()


def test_a_segment_that_no_host_has_is_refused_with_its_size(pool: SegmentPool) -> None:
    with pytest.raises(PipesvcError, match="no shared segment of") as caught:
        pool.allocate(1 << 70)
    assert caught.value.code is ErrorCode.INTERNAL


def test_segments_are_shared_with_a_second_process(pool: SegmentPool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", PEER, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True) as child:
        theirs.close()
        ours.settimeout(20)
        for size, content in [(5, b"abcde"), (3 * PAGE, b"\xff" * 3 * PAGE), (4, b"wxyz"), (3 * PAGE, b"a" * 3 * PAGE)]:
            segment = pool.allocate(size)
            segment.view[:size] = content
            fds = [segment.fd] if segment.is_new else []
            socket.send_fds(ours, [b"%d %d %d" % (segment.segment_id, segment.size, size)], fds)
            pool.release(int(ours.recv(100)))
            assert bytes(segment.view[:size]) == bytes((byte + 1) % 256 for byte in content)
        assert pool.num_in_use == 0
        ours.close()
        output, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    assert output.strip() == "[]"
