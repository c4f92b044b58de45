"""The child's end of the socket to its agent: commands and parcels in, parcels and reports out.

An executor has one compute thread, so nothing here runs beside it: `poll` is the only place where it waits. Tensors
lie in shared memory (`parcels`). They go to the agent, or straight to the child at the other end of their link once the
agents have found that it is on this host (`peer_links`).
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from torch import Tensor

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire import ahead, tree
from pipesvc.wire.credit_waits import CreditWaits, total_ns
from pipesvc.wire.links import Link
from pipesvc.worker.local_socket import ChildEnd, Packet, PeerGoneError
from pipesvc.worker.parcels import ParcelArrived, Parcels
from pipesvc.worker.peer_links import PeerReceiver, PeerSender
from pipesvc.worker.progress_page import ProgressPage

__all__ = ["ParcelArrived", "Port"]

# Between two words to the agent about what went without it.
_COUNT_S: Final = 0.5


class Port:
    """One per child, used by one thread; only `report` may be called from others. When the agent is gone, every method
    raises SystemExit: there is no one to work for."""

    def __init__(self, end: ChildEnd) -> None:
        self._end = end
        self._send_lock = threading.Lock()
        self._parcels = Parcels()
        self._senders: dict[Link, PeerSender] = {}
        self._receivers: dict[Link, PeerReceiver] = {}
        # By descriptor, those whose other end is there.
        self._peers: dict[int, PeerSender | PeerReceiver] = {}
        # Of links with a socket of their own; of the others the agent tells on the page.
        self._credit_waits = CreditWaits()
        self._poll = select.epoll()
        self._poll.register(end.fileno(), select.EPOLLIN)
        self._num_consumed: dict[Link, int] = {}
        # Parcels of each link that went, or came, through the agent.
        self._num_to_agent: Counter[Link] = Counter()
        self._num_by_agent: Counter[Link] = Counter()
        self._counted_s = 0.0
        self._page: ProgressPage | None = None
        self._events: list[local_pb2.ToChild | ParcelArrived] = []
        # The link that somebody waits for with more to send.
        self._crowded: Link | None = None
        self.has_reported_ready = False

    def fileno(self) -> int:
        """For a select loop: readable when `poll(0)` may return something."""
        return self._poll.fileno()

    def poll(self, timeout_s: float | None) -> list[local_pb2.ToChild | ParcelArrived]:
        """All that has come, in order; waits for the first at most `timeout_s` (None: as long as the agent lives).

        After a `has_room` that was false it also returns, with nothing, when that link has room.
        """
        self._release_dead()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._poll.poll(0.0 if self._events else left_s)
            for descriptor, _ in ready:
                self._read(descriptor)
            gets_room = self._crowded is not None and self.has_room(self._crowded)
            if gets_room or self._events or (not ready and left_s is not None):
                events, self._events = self._events, []
                return events

    def send_parcel(
        self, link: Link, step: int, micro_batch: int, value: Any, codec: int = types_pb2.CODEC_NONE
    ) -> None:
        """Send a tree of tensors, coded where the codec takes them. It may be changed or freed when this returns."""
        structure, leaves = tree.flatten(value, lambda leaf: isinstance(leaf, Tensor))
        self._send_leaves(link, step, micro_batch, structure, leaves, codec)

    def send_gradients(
        self,
        link: Link,
        step: int,
        micro_batch: int,
        grads: Sequence[Tensor | None],
        codec: int = types_pb2.CODEC_NONE,
    ) -> None:
        """Send one gradient for each leaf that the producer's parcel had; None: that leaf got none."""
        self._send_leaves(link, step, micro_batch, "", grads, codec)

    def consumed(self, link: Link) -> None:
        """One more parcel of this link has been taken into work, so its sender may send one more."""
        number = self._num_consumed[link] = self._num_consumed.get(link, 0) + 1
        num_by_agent = self._num_by_agent[link]
        if number > num_by_agent and (receiver := self._receivers.get(link)) is not None:
            receiver.consumed(number - num_by_agent)
            self._watch(receiver)
            return
        consumed = local_pb2.ParcelsConsumed(link=link.to_message(), num_parcels=number)
        self.report(local_pb2.FromChild(parcels_consumed=consumed))

    def credit_ns(self) -> int:
        """How long, up to now, something that was sent here has waited for credit or, on a socket between two children,
        for the kernel, or somebody has waited for room. What waits at once on links of both kinds counts twice."""
        now_ns = time.monotonic_ns()
        by_agent_ns = 0 if self._page is None else total_ns(self._page.credit_waits, now_ns)
        return by_agent_ns + total_ns(self._credit_waits.parts, now_ns)

    def has_room(self, link: Link) -> bool:
        """Whether so much of what was sent here has been taken that another parcel may be made for this link."""
        num_bytes = self._parcels.ahead_bytes[link]
        if (sender := self._senders.get(link)) is not None:
            num_bytes += sender.ahead_bytes
        has_room = ahead.has_room(num_bytes)
        self._crowded = None if has_room else link
        if has_room == ((crowd := ("room", link)) in self._credit_waits):
            self._credit_waits.change(crowd, time.monotonic_ns(), is_waiting=not has_room)
        return has_room

    def way_of(self, link: Link) -> int:
        """The number of LinkWay that what is sent next on the link goes."""
        return types_pb2.LINK_WAY_SAME_HOST if link in self._senders else types_pb2.LINK_WAY_GRPC

    def report(self, message: local_pb2.FromChild) -> None:
        if message.HasField("progress"):
            self._show(message.progress)
            return
        if message.HasField("executor_times") and self._page is not None:
            self._page.write_times(message.executor_times)
            return
        self._send(message)
        if message.HasField("ready"):
            self.has_reported_ready = True

    def close(self) -> None:
        for peer in (*self._senders.values(), *self._receivers.values()):
            peer.close()
        self._poll.close()
        self._end.close()
        self._parcels.close()
        if self._page is not None:
            self._page.close()

    def _show(self, progress: local_pb2.Progress) -> None:
        if self._page is not None:
            self._page.write(progress)
            return
        self._page = ProgressPage()
        self._page.write(progress)
        self._send(local_pb2.FromChild(progress_page=local_pb2.ProgressPage()), (self._page.descriptor,))
        os.close(self._page.descriptor)

    def _read(self, descriptor: int) -> None:
        peer = self._peers.get(descriptor)
        if peer is None:
            while (packet := self._receive()) is not None:
                self._take(packet)
            return
        peer.read()
        if isinstance(peer, PeerReceiver):
            self._take_from(peer)
        self._watch(peer)

    def _take_from(self, receiver: PeerReceiver) -> None:
        self._events.extend(receiver.take(self._num_by_agent[receiver.link]))

    def _watch(self, peer: PeerSender | PeerReceiver) -> None:
        """Wake up when what waits can go on; never again for one that is gone."""
        if isinstance(peer, PeerSender) and peer.is_waiting != (peer.link in self._credit_waits):
            self._credit_waits.change(peer.link, time.monotonic_ns(), is_waiting=peer.is_waiting)
        if not peer.is_gone and peer.awaits_kernel == peer.is_watched_for_room:
            return
        descriptor = peer.fileno()
        if descriptor not in self._peers:
            return
        if peer.is_gone:
            self._poll.unregister(descriptor)
            del self._peers[descriptor]
        else:
            peer.is_watched_for_room = peer.awaits_kernel
            self._poll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if peer.awaits_kernel else 0))

    def _receive(self) -> Packet | None:
        try:
            return self._end.receive(0.0)
        except PeerGoneError:
            self._agent_gone()

    def _send(self, message: local_pb2.FromChild, descriptors: Sequence[int] = ()) -> None:
        try:
            with self._send_lock:
                self._end.send(message.SerializeToString(), descriptors)
        except PeerGoneError:
            self._agent_gone()

    def _agent_gone(self) -> NoReturn:
        raise SystemExit("the worker agent is gone")

    def _release_dead(self) -> None:
        for release in self._parcels.to_release():
            self._send(local_pb2.FromChild(release_segment=release))
        for receiver in self._receivers.values():
            if receiver.has_dead:
                receiver.release_dead()
                self._watch(receiver)

    def _take(self, packet: Packet) -> None:
        message = local_pb2.ToChild.FromString(packet.message)
        match message.WhichOneof("message"):
            case "tensor":
                link = Link.from_message(message.tensor.link)
                if (arrived := self._parcels.take(link, message.tensor, packet.descriptors)) is not None:
                    self._num_by_agent[arrived.link] += 1
                    self._events.append(arrived)
                    if (receiver := self._receivers.get(arrived.link)) is not None:
                        self._take_from(receiver)
            case "release_segment":
                self._parcels.released(message.release_segment)
            case "peer_link":
                self._add_peer(message.peer_link, packet.descriptors[0])
            case _:
                self._events.append(message)

    def _add_peer(self, found: local_pb2.PeerLink, descriptor: int) -> None:
        link, sock = Link.from_message(found.link), socket.socket(fileno=descriptor)
        peer: PeerSender | PeerReceiver
        if found.is_sender:
            peer = self._senders[link] = PeerSender(link, sock, found.window_parcels, self._num_to_agent[link])
        else:
            peer = self._receivers[link] = PeerReceiver(link, sock)
        self._peers[descriptor] = peer
        self._poll.register(descriptor, select.EPOLLIN)

    def _send_leaves(
        self, link: Link, step: int, micro_batch: int, structure: str, leaves: Sequence[Tensor | None], codec: int
    ) -> None:
        self._release_dead()
        if (sender := self._senders.get(link)) is not None:
            sender.send(step, micro_batch, structure, leaves, codec)
            self._watch(sender)
            self._count()
            return
        self._num_to_agent[link] += 1
        for local, descriptors in self._parcels.described(link, step, micro_batch, structure, leaves, codec):
            local.link.CopyFrom(link.to_message())
            self._send(local_pb2.FromChild(tensor=local), descriptors)

    def _count(self) -> None:
        """Tell the agent now and then what its links have carried."""
        now_s = time.monotonic()
        if now_s >= self._counted_s + _COUNT_S:
            self._counted_s = now_s
            self.report_counts()

    def report_counts(self) -> None:
        """What went on sockets of their own; to be called at the end too."""
        if self._senders:
            counts = local_pb2.PeerCounts(counts=[each.count for each in self._senders.values()])
            self._send(local_pb2.FromChild(peer_counts=counts))
