"""A link between two children of one host: its own socket, and memory that both share.

The agents have proved that both ends are on one host by handing over the socket; from then on they have no part in it.
The sender keeps to the receiver's credit as on any link, and neither end ever blocks: what the kernel does not take, or
credit does not allow, waits here, so two that send to each other cannot stop each other.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.ahead import Ahead
from pipesvc.wire.links import Link
from pipesvc.worker import peer_counts
from pipesvc.worker.local_socket import Outgoing, PeerGoneError, receive_now
from pipesvc.worker.parcels import ParcelArrived, Parcels


class PeerEnd:
    """One end. When the other one is gone nothing comes and what is sent is dropped: agents tell the run of it."""

    def __init__(self, link: Link, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.link = link
        self._socket = sock
        self._parcels = Parcels()
        # With what ends a parcel, in the order of the link.
        self._waiting: deque[tuple[Outgoing, bool]] = deque()
        self._is_gone = False
        self.awaits_kernel = False
        """What waits may go when the socket can be written to."""
        self.is_watched_for_room = False
        """The port's note of whether it is told then."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def flush(self) -> None:
        """Send what may go now."""
        self.awaits_kernel = False
        while self._waiting and not self._is_gone and self._may_send():
            outgoing, ends_parcel = self._waiting[0]
            try:
                outgoing.send(self._socket)
            except BlockingIOError:
                self.awaits_kernel = True
                return
            except PeerGoneError:
                self._gone()
                return
            self._waiting.popleft()
            self._sent(ends_parcel=ends_parcel)

    def close(self) -> None:
        self._gone()
        self._socket.close()
        self._parcels.close()

    @property
    def is_waiting(self) -> bool:
        """Something has not gone yet."""
        return bool(self._waiting)

    def _may_send(self) -> bool:
        return True

    def _sent(self, *, ends_parcel: bool) -> None:
        """One message has gone."""

    def _put(
        self, message: local_pb2.PeerMessage, descriptors: Sequence[int] = (), *, ends_parcel: bool = False
    ) -> None:
        if not self._is_gone:
            self._waiting.append((Outgoing(message.SerializeToString(), descriptors), ends_parcel))

    def _received(self) -> Iterator[tuple[local_pb2.PeerMessage, tuple[int, ...]]]:
        while not self._is_gone:
            try:
                packet = receive_now(self._socket)
            except BlockingIOError:
                return
            except PeerGoneError:
                self._gone()
                return
            yield local_pb2.PeerMessage.FromString(packet.message), packet.descriptors

    @property
    def is_gone(self) -> bool:
        return self._is_gone

    def _gone(self) -> None:
        self._is_gone, self.awaits_kernel = True, False
        while self._waiting:
            self._waiting.popleft()[0].close()


class PeerSender(PeerEnd):
    """`num_before` parcels of the link went through the agent."""

    def __init__(self, link: Link, sock: socket.socket, window_parcels: int, num_before: int) -> None:
        super().__init__(link, sock)
        self._put(local_pb2.PeerMessage(begins_after=num_before))
        self._credit = window_parcels
        self._window = window_parcels
        self._num_sent = 0
        self._ahead = Ahead()
        self.count = local_pb2.PeerCount(link=link.to_message())

    def send(self, step: int, micro_batch: int, structure: str, leaves: Sequence[Tensor | None], codec: int) -> None:
        """The tensors may be changed or freed as soon as this returns; credit decides when they go."""
        num_bytes = 0
        for local, descriptors in self._parcels.described(self.link, step, micro_batch, structure, leaves, codec):
            num_bytes += local.total_bytes
            peer_counts.add(self.count, local)
            ends_parcel = local.value + 1 >= local.num_values
            self._put(local_pb2.PeerMessage(tensor=local), descriptors, ends_parcel=ends_parcel)
        self._ahead.made(num_bytes)
        self.flush()

    @property
    def ahead_bytes(self) -> int:
        """Of the parcels that the receiver has not taken; a dead one takes none and holds none."""
        return 0 if self._is_gone else self._ahead.num_bytes

    def read(self) -> None:
        """Take in what the receiver says."""
        for message, _ in self._received():
            if message.HasField("release_segment"):
                self._parcels.released(message.release_segment)
            elif message.HasField("parcels_consumed"):
                num_parcels = message.parcels_consumed.num_parcels
                self._credit = max(self._credit, self._window + num_parcels)
                self._ahead.taken(num_parcels)
        self.flush()

    def _may_send(self) -> bool:
        return self._num_sent < self._credit

    def _sent(self, *, ends_parcel: bool) -> None:
        self._num_sent += ends_parcel


class PeerReceiver(PeerEnd):
    def __init__(self, link: Link, sock: socket.socket) -> None:
        super().__init__(link, sock)
        self._begins_after = 0
        self._arrived: deque[ParcelArrived] = deque()

    def read(self) -> None:
        """Take in what has come."""
        for message, descriptors in self._received():
            if message.HasField("tensor"):
                if (arrived := self._parcels.take(self.link, message.tensor, descriptors)) is not None:
                    self._arrived.append(arrived)
            else:
                self._begins_after = message.begins_after

    def take(self, num_by_agent: int) -> Iterable[ParcelArrived]:
        """The parcels that have come, once all before them have come by the agent: so many have."""
        while self._arrived and num_by_agent >= self._begins_after:
            yield self._arrived.popleft()

    def consumed(self, num_parcels: int) -> None:
        """So many (an absolute count) of those that came here have been taken into work."""
        consumed = local_pb2.ParcelsConsumed(num_parcels=num_parcels)
        self._put(local_pb2.PeerMessage(parcels_consumed=consumed))
        self.flush()

    @property
    def has_dead(self) -> bool:
        return self._parcels.has_dead

    def release_dead(self) -> None:
        """Give back the segments whose tensors are gone."""
        for release in self._parcels.to_release():
            self._put(local_pb2.PeerMessage(release_segment=release))
        self.flush()
