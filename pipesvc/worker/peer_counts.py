"""What a link has carried, where its tensors went by the agents first and from child to child from then on."""

from __future__ import annotations

from pipesvc.net.link_counts import LinkCounts
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from pipesvc.wire.elements import PLAIN, total_bytes
from pipesvc.wire.links import Link


def add(count: local_pb2.PeerCount, local: local_pb2.LocalTensor) -> None:
    """One more tensor has gone from child to child."""
    is_coded = local.codec not in PLAIN
    count.tensor_bytes += total_bytes(local.dtype, local.shape) if is_coded else local.total_bytes
    count.coded_bytes += local.total_bytes
    count.num_tensors += 1
    count.relative_error = max(count.relative_error, local.relative_error)


def link_count(run_id: str, link: Link, sent: LinkCounts, peer: local_pb2.PeerCount | None) -> worker_pb2.LinkCount:
    """What agents have sent, and what children have sent to each other; None: they have not."""
    way = types_pb2.LINK_WAY_GRPC if peer is None else types_pb2.LINK_WAY_SAME_HOST
    peer = peer or local_pb2.PeerCount()
    return worker_pb2.LinkCount(
        run_id=run_id,
        link=link.to_message(),
        tensor_bytes=sent.tensor_bytes + peer.tensor_bytes,
        wire_bytes=sent.wire_bytes,
        num_frames=sent.num_frames + peer.num_tensors,
        way=way,
        coded_bytes=sent.coded_bytes + peer.coded_bytes,
        relative_error=max(sent.relative_error, peer.relative_error),
    )
