"""The child's end of the socket to its agent: commands and parcels in, parcels and reports out.

An executor has one compute thread, so nothing here runs beside it: `poll` is the only place where it waits. Tensors
are not sent through the socket. A parcel's bytes lie in memfd segments: those that come in are used where they lie,
and the segment goes back to the agent when the last tensor over it is gone; those that go out are copied once, and
the segment is free again when the receiving worker has acknowledged it. Payloads up to `INLINE_PAYLOAD_BYTES`
travel inside the message.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from torch import Tensor

from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire import layouts, tensors, tree
from pipesvc.wire.links import Link
from pipesvc.wire.segments import SegmentMap, SegmentPool
from pipesvc.worker.local_socket import ChildEnd, Packet, PeerGoneError

INLINE_PAYLOAD_BYTES: Final = 16 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ParcelArrived:
    """What one link carried for one (step, micro-batch), whole.

    The tensors need no gradient; `requires_grad` says which of them did at the producer. A leaf is
    None where the parcel says that it has no gradient.
    """

    link: Link
    step: int
    micro_batch: int
    leaves: tuple[Tensor | None, ...]
    requires_grad: tuple[bool, ...]
    structure: str

    def value(self) -> Any:
        """The tree that was sent."""
        return tree.unflatten(self.structure, list(self.leaves))


class Port:
    """One per child, used by one thread; only `report` may be called from others. When the agent is gone, every method
    raises SystemExit: there is no one to work for."""

    def __init__(self, end: ChildEnd) -> None:
        self._end = end
        self._send_lock = threading.Lock()
        self._pool = SegmentPool()
        self._map = SegmentMap()
        # Segments whose tensors are gone; a weakref callback appends from whichever thread dropped the last one.
        self._dead_segments: deque[int] = deque()
        self._partial: dict[Link, list[local_pb2.LocalTensor]] = {}
        self._partial_leaves: dict[Link, list[Tensor | None]] = {}
        self._num_consumed: dict[Link, int] = {}
        self._events: list[local_pb2.ToChild | ParcelArrived] = []
        self.has_reported_ready = False

    def fileno(self) -> int:
        """For a select loop: readable when `poll(0)` may return something."""
        return self._end.fileno()

    def poll(self, timeout_s: float | None) -> list[local_pb2.ToChild | ParcelArrived]:
        """All that has come, in order; waits for the first at most `timeout_s` (None: as long as the agent lives)."""
        self._release_dead()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            packet = self._receive(0.0 if self._events else left_s)
            if packet is None:
                events, self._events = self._events, []
                return events
            self._take(packet)

    def send_parcel(self, link: Link, step: int, micro_batch: int, value: Any) -> None:
        """Send a tree of tensors. It may be changed or freed as soon as this returns."""
        structure, leaves = tree.flatten(value, lambda leaf: isinstance(leaf, Tensor))
        self._send_leaves(link, step, micro_batch, structure, leaves)

    def send_gradients(self, link: Link, step: int, micro_batch: int, grads: Sequence[Tensor | None]) -> None:
        """Send one gradient for each leaf that the producer's parcel had; None: that leaf got none."""
        self._send_leaves(link, step, micro_batch, "", grads)

    def consumed(self, link: Link) -> None:
        """One more parcel of this link has been taken into work, so its sender may send one more."""
        self._num_consumed[link] = self._num_consumed.get(link, 0) + 1
        consumed = local_pb2.ParcelsConsumed(link=link.to_message(), num_parcels=self._num_consumed[link])
        self.report(local_pb2.FromChild(parcels_consumed=consumed))

    def report(self, message: local_pb2.FromChild) -> None:
        self._send(message)
        if message.HasField("ready"):
            self.has_reported_ready = True

    def close(self) -> None:
        self._end.close()
        self._pool.close()
        self._map.close()

    def _receive(self, timeout_s: float | None) -> Packet | None:
        try:
            return self._end.receive(timeout_s)
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
        while self._dead_segments:
            release = local_pb2.ReleaseSegment(segment_id=self._dead_segments.popleft())
            self._send(local_pb2.FromChild(release_segment=release))

    def _take(self, packet: Packet) -> None:
        message = local_pb2.ToChild.FromString(packet.message)
        match message.WhichOneof("message"):
            case "tensor":
                self._take_tensor(message.tensor, packet.descriptors)
            case "release_segment":
                self._pool.release(message.release_segment.segment_id)
            case _:
                self._events.append(message)

    def _take_tensor(self, local: local_pb2.LocalTensor, descriptors: tuple[int, ...]) -> None:
        link = Link.from_message(local.link)
        partial = self._partial.setdefault(link, [])
        leaves = self._partial_leaves.setdefault(link, [])
        if local.new_segment_bytes:
            self._map.attach(local.segment_id, descriptors[0], local.new_segment_bytes)
        assert local.value == len(partial), f"tensor {local.value} of {link} came where {len(partial)} was due"
        partial.append(local)
        if local.num_values:
            leaves.append(self._leaf(local))
        if len(leaves) < local.num_values:
            return
        del self._partial[link], self._partial_leaves[link]
        structure, laid = layouts.unpack(partial[0].structure, leaves)
        arrived = ParcelArrived(
            link=link,
            step=local.step,
            micro_batch=local.micro_batch,
            leaves=tuple(laid),
            requires_grad=tuple(each.requires_grad for each in partial[: len(leaves)]),
            structure=structure,
        )
        self._events.append(arrived)

    def _leaf(self, local: local_pb2.LocalTensor) -> Tensor | None:
        if local.is_no_gradient:
            return None
        if not local.segment_id:
            return tensors.from_buffer(memoryview(local.inline_payload), local.dtype, tuple(local.shape))
        view = self._map.view(local.segment_id, local.total_bytes)
        # torch.frombuffer keeps this very memoryview alive as long as any tensor over it lives.
        weakref.finalize(view, self._dead_segments.append, local.segment_id).atexit = False
        return tensors.from_buffer(view, local.dtype, tuple(local.shape))

    def _send_leaves(
        self, link: Link, step: int, micro_batch: int, structure: str, leaves: Sequence[Tensor | None]
    ) -> None:
        self._release_dead()
        structure, leaves = layouts.pack(structure, leaves)
        for value in range(max(1, len(leaves))):
            local = local_pb2.LocalTensor(
                link=link.to_message(),
                step=step,
                micro_batch=micro_batch,
                value=value,
                num_values=len(leaves),
                structure=structure if value == 0 else "",
            )
            leaf = leaves[value] if leaves else None
            descriptors: tuple[int, ...] = ()
            if leaf is None:
                local.is_no_gradient = bool(leaves)
            else:
                descriptors = self._describe(local, leaf)
            self._send(local_pb2.FromChild(tensor=local), descriptors)

    def _describe(self, local: local_pb2.LocalTensor, leaf: Tensor) -> tuple[int, ...]:
        """Fill in what the tensor is and where its bytes are; gives the descriptor that must go with it, if any."""
        local.dtype = tensors.element_type_of(leaf)  # type: ignore[assignment]
        local.shape.extend(leaf.shape)
        local.requires_grad = leaf.requires_grad
        local.total_bytes = tensors.num_bytes(leaf)
        if local.total_bytes <= INLINE_PAYLOAD_BYTES:
            local.inline_payload = bytes(tensors.tensor_bytes(leaf))
            return ()
        segment = self._pool.allocate(local.total_bytes)
        tensors.copy_into(leaf, segment.view[: local.total_bytes])
        local.segment_id = segment.segment_id
        if not segment.is_new:
            return ()
        local.new_segment_bytes = segment.size
        return (segment.fd,)
