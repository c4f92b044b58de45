"""Tensors of one run between the sockets of this worker's children and the links to other workers.

The first parcels of each link go this way. When the other agent turns out to be on this host (`doors`), both give their
children the ends of a socket, and the link's tensors go from child to child from then on (`peer_links`).

Bytes stay where they are: what a child sends lies in a segment of the child's, which is sent from there and given
back when the receiver has acknowledged it; what arrives is written by the link service straight into a segment that
the consuming child will read. Only small payloads travel inside messages. A link between two children of one worker
is a link like any other, so that credit and order have one implementation.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.net.addresses import parse
from pipesvc.net.link_sender import LinkSender
from pipesvc.net.link_service import LinkService
from pipesvc.net.outgoing import OutgoingTensor
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from pipesvc.wire.frames import FrameHeader
from pipesvc.wire.links import CLIENT, Link, endpoint_name
from pipesvc.wire.segments import Segment, SegmentMap, SegmentPool
from pipesvc.worker import peer_counts
from pipesvc.worker.credit_board import CreditBoard
from pipesvc.worker.doors import Door, knock

_log = logging.getLogger("pipesvc.worker")

# Below this a tensor is cheaper to copy through the socket than to map; the child has the same limit for its side.
INLINE_PAYLOAD_BYTES: Final = 16 * 1024


class Recipient(Protocol):
    """A child, as far as tensors are concerned."""

    def send(self, message: local_pb2.ToChild, descriptors: tuple[int, ...] = ()) -> None: ...


class ChildExchange:
    """The segments that the agent shares with one child."""

    def __init__(self, child: Recipient) -> None:
        self.child = child
        self.credit_board: Final = CreditBoard()
        self._pool = SegmentPool()
        self._map = SegmentMap()
        # Where the bytes of each link's tensor under way are being written.
        self._arriving: dict[Link, Segment] = {}

    def allocate(self, link: Link, header: FrameHeader) -> memoryview:
        if header.total_bytes <= INLINE_PAYLOAD_BYTES:
            return memoryview(bytearray(header.total_bytes))
        segment = self._arriving[link] = self._pool.allocate(header.total_bytes)
        return segment.view[: header.total_bytes]

    def deliver(self, link: Link, header: FrameHeader, view: memoryview) -> None:
        local = local_pb2.LocalTensor(
            link=link.to_message(),
            step=header.step,
            micro_batch=header.micro_batch,
            value=header.value,
            num_values=header.num_values,
            structure=header.structure,
            shape=header.shape,
            requires_grad=header.requires_grad,
            is_no_gradient=header.is_no_gradient,
            total_bytes=header.total_bytes,
        )
        local.dtype = header.dtype  # type: ignore[assignment]
        local.codec = header.codec  # type: ignore[assignment]
        segment = self._arriving.pop(link, None)
        descriptors: tuple[int, ...] = ()
        if segment is None:
            local.inline_payload = bytes(view)
        else:
            local.segment_id = segment.segment_id
            if segment.is_new:
                local.new_segment_bytes = segment.size
                descriptors = (segment.fd,)
        self.child.send(local_pb2.ToChild(tensor=local), descriptors)

    def outgoing(self, local: local_pb2.LocalTensor, descriptors: tuple[int, ...]) -> OutgoingTensor:
        """What the child sent, as the link's sender wants it."""
        if local.new_segment_bytes:
            self._map.attach(local.segment_id, descriptors[0], local.new_segment_bytes)
        segment_id = local.segment_id
        in_segment = segment_id > 0
        view = self._map.view(segment_id, local.total_bytes) if in_segment else memoryview(local.inline_payload)
        return OutgoingTensor(
            step=local.step,
            micro_batch=local.micro_batch,
            value=local.value,
            num_values=local.num_values,
            structure=local.structure,
            element_type=local.dtype,
            shape=tuple(local.shape),
            requires_grad=local.requires_grad,
            is_no_gradient=local.is_no_gradient,
            codec=local.codec or types_pb2.CODEC_NONE,
            relative_error=local.relative_error,
            view=view,
            on_acknowledged=(lambda: self._give_back(segment_id)) if in_segment else _nothing,
        )

    def released(self, segment_id: int) -> None:
        self._pool.release(segment_id)

    @property
    def num_segments_in_use(self) -> int:
        return self._pool.num_in_use

    def close(self) -> None:
        self._arriving.clear()
        self._pool.close()
        self._map.close()

    def _give_back(self, segment_id: int) -> None:
        self.child.send(local_pb2.ToChild(release_segment=local_pb2.ReleaseSegment(segment_id=segment_id)))


class Exchange:
    """All links of one run that begin or end on this worker. It is the run's sink at the link service."""

    def __init__(
        self,
        *,
        run_id: str,
        term: int,
        token: str,
        window_parcels: int,
        addresses: Mapping[int, str],
        service: LinkService,
        on_failed: Callable[[PipesvcError], None],
        on_client_lost: Callable[[PipesvcError], None],
        door: Door | None = None,
        has_checksums: bool = True,
    ) -> None:
        self._run_id = run_id
        self._term = term
        self._token = token
        self._addresses = dict(addresses)
        self._service = service
        self._on_failed = on_failed
        self._on_client_lost = on_client_lost
        self._window_parcels = window_parcels
        self._door = door
        self._knocks: set[asyncio.Task[None]] = set()
        self._has_checksums = has_checksums
        self._has_client_ended = False
        self._children: dict[types_pb2.Role, ChildExchange] = {}
        self._consumers: dict[int, ChildExchange] = {}
        self._senders: dict[Link, LinkSender] = {}
        self._peer_counts: dict[Link, local_pb2.PeerCount] = {}
        service.open_run(
            run_id,
            term=term,
            token=token,
            window_parcels=window_parcels,
            sink=self,
            on_lost=self._lost,
            door=door.name if door is not None else "",
        )
        if door is not None:
            door.open_run(run_id, term=term, token=token, admit=self._admit)

    def add(self, role: types_pb2.Role, child: Recipient, endpoints: Collection[int]) -> None:
        """`endpoints` are the ends of links that this child is."""
        self._children[role] = exchange = ChildExchange(child)
        self._consumers |= dict.fromkeys(endpoints, exchange)

    def allocate(self, link: Link, header: FrameHeader) -> memoryview:
        return self._consumer(link).allocate(link, header)

    def deliver(self, link: Link, header: FrameHeader, view: memoryview) -> None:
        self._consumer(link).deliver(link, header, view)
        # Only the marker after the client's last batch is without tensors.
        self._has_client_ended |= link.producer == CLIENT and header.num_values == 0

    def _lost(self, link: Link, since_s: float) -> None:
        """Of another worker's link its sender hears as well; a client that is gone can tell nobody."""
        if link.producer != CLIENT or self._has_client_ended:
            return
        since = datetime.fromtimestamp(since_s, UTC)
        self._on_client_lost(
            PipesvcError(
                ErrorCode.DATA_SOURCE_FAILED,
                f"the client that streams the data is gone since {since:%H:%M:%S} UTC: its link {link} ended before "
                "the data did, and did not come back",
                advice="Keep the client's process running until its data has been read, "
                "or give a DataSource, which is read on a worker",
                where=Where(run_id=self._run_id),
            )
        )

    def received(self, role: types_pb2.Role, message: local_pb2.FromChild, descriptors: tuple[int, ...]) -> None:
        """One of the messages of a child that concern tensors."""
        match message.WhichOneof("message"):
            case "tensor":
                link, child = Link.from_message(message.tensor.link), self._children[role]
                self._sender(link, child).send(child.outgoing(message.tensor, descriptors))
            case "peer_counts":
                self._peer_counts |= {Link.from_message(each.link): each for each in message.peer_counts.counts}
            case "release_segment":
                self._children[role].released(message.release_segment.segment_id)
            case "parcels_consumed":
                consumed = message.parcels_consumed
                self._service.consumed(self._run_id, Link.from_message(consumed.link), consumed.num_parcels)

    def credit_board(self, role: types_pb2.Role) -> CreditBoard:
        return self._children[role].credit_board

    @property
    def num_segments_in_use(self) -> int:
        """Of those that the agent made; a child that drops its tensors gives them back."""
        return sum(child.num_segments_in_use for child in self._children.values())

    def counts(self) -> list[worker_pb2.LinkCount]:
        return [
            peer_counts.link_count(self._run_id, link, sender.counts, self._peer_counts.get(link))
            for link, sender in self._senders.items()
        ]

    async def close(self) -> None:
        """Nothing arrives and nothing leaves any more."""
        self._service.close_run(self._run_id)
        if self._door is not None:
            self._door.close_run(self._run_id)
        for task in list(self._knocks):
            task.cancel()
        await asyncio.gather(*self._knocks, return_exceptions=True)
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))
        for child in self._children.values():
            child.close()

    def _consumer(self, link: Link) -> ChildExchange:
        child = self._consumers.get(link.consumer)
        if child is None:
            # Two workers with one address, such as loopback of their own hosts, are taken for each other.
            what = f"stage {link.consumer}" if link.consumer >= 0 else endpoint_name(link.consumer)
            text = f"a parcel of {link} came to a worker that has no {what}"
            advice = "The address of the worker that has it is another's: start that one with --advertise HOST:PORT"
            raise PipesvcError(ErrorCode.LINK_LOST, text, advice=advice, where=Where(run_id=self._run_id))
        return child

    def _admit(self, link: Link, sock: socket.socket) -> None:
        """Another agent of this host has knocked: the consumer gets its end."""
        self._hand_over(link, self._consumer(link), sock, is_sender=False)

    def _knock(self, link: Link, child: ChildExchange, door: str) -> None:
        """The consumer's agent has said where its door is, which may be on this host."""
        task = asyncio.get_running_loop().create_task(self._find_way(link, child, door))
        self._knocks.add(task)
        task.add_done_callback(self._knocks.discard)

    async def _find_way(self, link: Link, child: ChildExchange, door: str) -> None:
        greeting = local_pb2.Knock(run_id=self._run_id, term=self._term, link=link.to_message(), token=self._token)
        try:
            with await knock(door, greeting) as sock:
                self._hand_over(link, child, sock, is_sender=True)
        except (OSError, TimeoutError) as error:
            _log.info("%s of %s goes over gRPC: %s", link, self._run_id, error or "nobody answered")

    def _hand_over(self, link: Link, child: ChildExchange, sock: socket.socket, *, is_sender: bool) -> None:
        found = local_pb2.PeerLink(link=link.to_message(), is_sender=is_sender, window_parcels=self._window_parcels)
        child.child.send(local_pb2.ToChild(peer_link=found), (sock.fileno(),))

    def _sender(self, link: Link, child: ChildExchange) -> LinkSender:
        sender = self._senders.get(link)
        if sender is None:
            address = self._addresses.get(link.consumer)
            if address is None:
                text = f"no address of {endpoint_name(link.consumer)} for link {link}"
                raise PipesvcError(ErrorCode.INTERNAL, text, where=Where(run_id=self._run_id))
            sender = self._senders[link] = LinkSender(
                link=link,
                run_id=self._run_id,
                term=self._term,
                address=parse(address),
                token=self._token,
                on_failed=self._on_failed,
                on_door=partial(self._knock, link, child) if self._door is not None else None,
                on_awaiting=partial(child.credit_board.change, link),
                has_checksums=self._has_checksums,
            )
        return sender


def _nothing() -> None:
    pass
