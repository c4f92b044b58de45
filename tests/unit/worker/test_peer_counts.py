"""Both ways of one link in one count."""

from __future__ import annotations

import pytest

from pipesvc.net.link_counts import LinkCounts
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from pipesvc.wire.links import Link
from pipesvc.worker import peer_counts

LINK = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)
SENT = LinkCounts(tensor_bytes=400, wire_bytes=150, num_frames=2, coded_bytes=104, relative_error=0.01)


def test_what_went_each_way_is_added_and_the_larger_error_stays() -> None:
    for error in (0.005, 0.02):
        peer = local_pb2.PeerCount(tensor_bytes=4000, coded_bytes=1040, num_tensors=5, relative_error=error)
        assert peer_counts.link_count("r", LINK, SENT, peer) == worker_pb2.LinkCount(
            run_id="r",
            link=LINK.to_message(),
            tensor_bytes=4400,
            wire_bytes=150,
            num_frames=7,
            way=types_pb2.LINK_WAY_SAME_HOST,
            coded_bytes=1144,
            relative_error=max(0.01, error),
        )


def test_without_a_word_of_the_children_it_is_what_the_agent_sent() -> None:
    count = peer_counts.link_count("r", LINK, SENT, None)
    assert count.way == types_pb2.LINK_WAY_GRPC
    assert (count.tensor_bytes, count.wire_bytes, count.num_frames, count.coded_bytes) == (400, 150, 2, 104)
    assert count.relative_error == 0.01


def test_a_coded_tensor_counts_with_its_own_bytes_and_those_that_travel() -> None:
    count = local_pb2.PeerCount()
    float32, int8 = types_pb2.ELEMENT_TYPE_FLOAT32, types_pb2.CODEC_INT8
    local = local_pb2.LocalTensor(dtype=float32, shape=(10, 100), total_bytes=1016, codec=int8, relative_error=0.25)
    peer_counts.add(count, local)
    peer_counts.add(count, local_pb2.LocalTensor(dtype=float32, shape=(5,), total_bytes=20))
    peer_counts.add(count, local_pb2.LocalTensor(is_no_gradient=True))
    assert (count.tensor_bytes, count.coded_bytes, count.num_tensors) == (4020, 1036, 3)
    assert count.relative_error == pytest.approx(0.25)
