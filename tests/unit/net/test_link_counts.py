"""What a link has sent, as users see it."""

from __future__ import annotations

from dataclasses import replace

from pipesvc.net.link_counts import LinkCounts, LinkTally
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.frames import FrameHeader

TENSOR = FrameHeader(
    num_values=1,
    sequence=1,
    total_bytes=600,
    dtype=types_pb2.ELEMENT_TYPE_FLOAT32,
    shape=(300,),
    codec=types_pb2.CODEC_BF16,
)


def test_a_tensor_counts_once_when_it_is_whole_and_its_frames_each_time() -> None:
    tally = LinkTally()
    second = replace(TENSOR, chunk_offset=400)
    tally.sent(TENSOR, 400, 450)
    assert tally.counts == LinkCounts(wire_bytes=450, num_frames=1)
    tally.sent(second, 200, 230)
    whole = tally.counts
    assert whole == LinkCounts(tensor_bytes=1200, coded_bytes=600, wire_bytes=680, num_frames=2)
    tally.sent(TENSOR, 400, 450)  # again, after a break
    tally.sent(second, 200, 230)
    assert tally.counts == replace(whole, wire_bytes=1360, num_frames=4)


def test_markers_have_no_bytes_and_plain_tensors_those_that_they_announce() -> None:
    tally = LinkTally()
    tally.sent(FrameHeader(sequence=1), 0, 30)
    tally.sent(FrameHeader(sequence=2, num_values=1, is_no_gradient=True), 0, 30)
    tally.sent(replace(TENSOR, sequence=3, total_bytes=1200, codec=types_pb2.CODEC_NONE), 1200, 1250)
    assert tally.counts == LinkCounts(tensor_bytes=1200, coded_bytes=1200, wire_bytes=1310, num_frames=3)


def test_the_largest_error_is_kept() -> None:
    tally = LinkTally()
    for error in (0.1, 0.3, 0.0):
        tally.erred(error)
    assert tally.counts.relative_error == 0.3
