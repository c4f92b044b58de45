"""An in-memory network in the place of agents.

A parcel is cloned into contiguous memory on its way and laid as it was, as the wire does. Each link has the two ends of
`wire.credit` that a real one has, and what they let through arrives: a parcel is one tensor without bytes to them.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire import codecs, layouts, tensors, tree
from pipesvc.wire.credit import ReceiverState, SenderState
from pipesvc.wire.elements import payload_bytes
from pipesvc.wire.frames import FrameHeader
from pipesvc.wire.links import Link
from pipesvc.worker.port import ParcelArrived

NONE: Final = types_pb2.CODEC_NONE


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _arrived(tensor: Tensor, codec: int) -> Tensor:
    form = codecs.codec_for(codec, tensor)
    if form != NONE:
        element_type = tensors.element_type_of(tensor)
        view = memoryview(bytearray(payload_bytes(form, element_type, tensor.shape)))
        if codecs.encode(tensor, form, view):
            return codecs.decode(view, form, element_type, tensor.shape)
    return tensor.detach().clone(memory_format=torch.contiguous_format)


class MemoryPort:
    """One end of the network; `reports` keeps what was said to the agent."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.commands: deque[local_pb2.ToChild] = deque()
        self.reports: list[local_pb2.FromChild] = []
        self.consumed_counts: Counter[Link] = Counter()

    def fileno(self) -> int:
        return self._wake

    def close(self) -> None:
        os.close(self._wake)

    def way_of(self, link: Link) -> int:
        return types_pb2.LINK_WAY_GRPC

    def tell(self, **message: Any) -> None:
        self.commands.append(local_pb2.ToChild(**message))
        os.eventfd_write(self._wake, 1)

    def poll(self, timeout_s: float | None) -> list[local_pb2.ToChild | ParcelArrived]:
        events = self._take()
        if not events and timeout_s:
            select.select([self._wake], [], [], timeout_s)
            events = self._take()
        return events

    def send_parcel(self, link: Link, step: int, micro_batch: int, value: Any, codec: int = NONE) -> None:
        structure, leaves = tree.flatten(value, is_tensor)
        self._network.carry(link, step, micro_batch, structure, leaves, codec)

    def send_gradients(
        self, link: Link, step: int, micro_batch: int, grads: Sequence[Tensor | None], codec: int = NONE
    ) -> None:
        self._network.carry(link, step, micro_batch, "", grads, codec)

    def consumed(self, link: Link) -> None:
        self.consumed_counts[link] += 1
        self._network.credit(link)

    def credit_ns(self) -> int:
        return 0

    def has_room(self, link: Link) -> bool:
        """As narrow as can be: while one parcel has not come, no other one may be made."""
        return self._network.num_on_their_way(link) == 0

    def report(self, message: local_pb2.FromChild) -> None:
        self.reports.append(message)

    def _take(self) -> list[local_pb2.ToChild | ParcelArrived]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        events: list[local_pb2.ToChild | ParcelArrived] = list(self._network.arrivals(self))
        while self.commands:
            events.append(self.commands.popleft())
        return events

    def reported(self, kind: str) -> list[Any]:
        return [getattr(each, kind) for each in self.reports if each.WhichOneof("message") == kind]


class Ends:
    """Sender and receiver of one link."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._sender: SenderState[None] = SenderState(run_id="run", term=1)
        self._receiver = ReceiverState(run_id="run", term=1, window_parcels=window)
        self._stream = self._receiver.opened()
        self._sender.replied(*self._receiver.reply())
        self._num_arrived = self._num_consumed = 0

    def sent(self, step: int, micro_batch: int) -> None:
        self._sender.enqueue(FrameHeader(step=step, micro_batch=micro_batch), memoryview(b""), None)

    def arrives(self) -> bool:
        """Whether there is credit for the next parcel, which has come then."""
        frame = self._sender.next_frame()
        if frame is None:
            return False
        assert self._receiver.accept(self._stream, frame[0], 0).is_whole
        self._sender.replied(*self._receiver.reply())
        self._num_arrived += 1
        assert self._num_arrived - self._num_consumed <= self._window
        return True

    def consumed(self) -> None:
        self._num_consumed += 1
        assert self._receiver.consumed(self._num_consumed)
        self._sender.replied(*self._receiver.reply())


@dataclass(kw_only=True)
class Network:
    """`window` bounds the parcels that a link's receiver holds and has not consumed."""

    window: int = 2
    ports: dict[int, MemoryPort] = field(default_factory=dict)
    sent: Counter[Link] = field(default_factory=Counter)
    _queues: dict[Link, deque[ParcelArrived]] = field(default_factory=dict)
    _ends: dict[Link, Ends] = field(default_factory=dict)

    def carry(
        self,
        link: Link,
        step: int,
        micro_batch: int,
        structure: str,
        leaves: Sequence[Tensor | None],
        codec: int = NONE,
    ) -> None:
        self.sent[link] += 1
        text, packed = layouts.pack(structure, leaves)
        copies = [None if each is None else _arrived(each, codec) for each in packed]
        structure, laid = layouts.unpack(text, copies)
        parcel = ParcelArrived(
            link=link,
            step=step,
            micro_batch=micro_batch,
            leaves=tuple(laid),
            requires_grad=tuple(each is not None and each.requires_grad for each in leaves),
            structure=structure,
        )
        self._queues.setdefault(link, deque()).append(parcel)
        self._ends.setdefault(link, Ends(self.window)).sent(step, micro_batch)
        port = self.ports.get(link.consumer)
        if port is not None:
            os.eventfd_write(port.fileno(), 1)

    def arrivals(self, port: MemoryPort) -> list[ParcelArrived]:
        arrived = []
        for link, queue in self._queues.items():
            if self.ports.get(link.consumer) is not port:
                continue
            while queue and self._ends[link].arrives():
                arrived.append(queue.popleft())
        return arrived

    def num_on_their_way(self, link: Link) -> int:
        return len(self._queues.get(link, ()))

    def hold(self, link: Link) -> ParcelArrived:
        """The next parcel of this link, which is late: others overtake it until it is released."""
        return self._queues[link].popleft()

    def release(self, parcel: ParcelArrived) -> None:
        self._queues[parcel.link].append(parcel)

    def credit(self, link: Link) -> None:
        self._ends[link].consumed()
        if self._queues.get(link):
            os.eventfd_write(self.ports[link.consumer].fileno(), 1)

    def close(self) -> None:
        for port in {id(port): port for port in self.ports.values()}.values():
            port.close()
