"""Parcels as messages between two processes that share memory: tensors out, tensors in.

A parcel's bytes lie in memfd segments: those that come in are used where they lie, and the segment goes back to its
owner when the last tensor over it is gone; those that go out are copied once, and the segment is free again when the
other side says so. Payloads up to `INLINE_PAYLOAD_BYTES` travel inside the message.

Where a link has a codec, tensors are coded as they are copied out and decoded as they are taken in, whether they go by
way of the agents or from child to child.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire import codecs, layouts, tensors, tree
from pipesvc.wire.elements import PLAIN, payload_bytes
from pipesvc.wire.links import Link
from pipesvc.wire.segments import Segment, SegmentMap, SegmentPool

INLINE_PAYLOAD_BYTES: Final = 16 * 1024
# Of the coded tensors of a link, the first and each so many later is decoded again to see its error. A prime number, so
# that a parcel of several tensors is seen at all its places.
_MEASURE_EVERY: Final = 31
Described = tuple[local_pb2.LocalTensor, tuple[int, ...]]


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


class Parcels:
    """The segments that this process shares with one other, both ways. For one thread."""

    def __init__(self) -> None:
        self._pool = SegmentPool()
        self._map = SegmentMap()
        # Segments whose tensors are gone; a weakref callback appends from whichever thread dropped the last one.
        self._dead_segments: deque[int] = deque()
        # Of parcels of which more tensors are to come.
        self._partial: dict[Link, tuple[list[local_pb2.LocalTensor], list[Tensor | None]]] = {}
        self._num_coded: Counter[Link] = Counter()
        # Of each link, the bytes of ours that the other side has not given back; and whose they are, by segment.
        self.ahead_bytes: Counter[Link] = Counter()
        self._lent: dict[int, tuple[Link, int]] = {}

    def described(
        self, link: Link, step: int, micro_batch: int, structure: str, leaves: Sequence[Tensor | None], codec: int
    ) -> Iterator[Described]:
        """Each tensor of a parcel as a message with the descriptor that goes with it, its bytes copied by then.

        The message does not name the link: some sockets carry only one.
        """
        structure, leaves = layouts.pack(structure, leaves)
        num_values = len(leaves)
        for value in range(max(1, num_values)):
            local = local_pb2.LocalTensor(step=step, micro_batch=micro_batch, value=value, num_values=num_values)
            if value == 0:
                local.structure = structure
            leaf = leaves[value] if leaves else None
            if leaf is None:
                local.is_no_gradient = bool(leaves)
                yield local, ()
            else:
                yield local, self._describe(link, local, leaf, codec)

    def take(self, link: Link, local: local_pb2.LocalTensor, descriptors: tuple[int, ...]) -> ParcelArrived | None:
        """One tensor that came on this link; the parcel with its last one."""
        partial, leaves = self._partial.pop(link, ([], []))
        if local.new_segment_bytes:
            self._map.attach(local.segment_id, descriptors[0], local.new_segment_bytes)
        assert local.value == len(partial), f"tensor {local.value} of {link} came where {len(partial)} was due"
        partial.append(local)
        if local.num_values:
            leaves.append(self._leaf(local))
        if len(leaves) < local.num_values:
            self._partial[link] = partial, leaves
            return None
        structure, laid = layouts.unpack(partial[0].structure, leaves)
        return ParcelArrived(
            link=link,
            step=local.step,
            micro_batch=local.micro_batch,
            leaves=tuple(laid),
            requires_grad=tuple(each.requires_grad for each in partial[: len(leaves)]),
            structure=structure,
        )

    def released(self, release: local_pb2.ReleaseSegment) -> None:
        """The other side is done with a segment of ours."""
        self._pool.release(release.segment_id)
        link, num_bytes = self._lent.pop(release.segment_id)
        self.ahead_bytes[link] -= num_bytes

    def to_release(self) -> Iterator[local_pb2.ReleaseSegment]:
        """What the other side is to be told: its segments whose tensors are gone here."""
        while self._dead_segments:
            yield local_pb2.ReleaseSegment(segment_id=self._dead_segments.popleft())

    @property
    def has_dead(self) -> bool:
        """Whether `to_release` would give something."""
        return bool(self._dead_segments)

    @property
    def num_segments_in_use(self) -> int:
        """Of ours."""
        return self._pool.num_in_use

    def close(self) -> None:
        self._pool.close()
        self._map.close()

    def _leaf(self, local: local_pb2.LocalTensor) -> Tensor | None:
        if local.is_no_gradient:
            return None
        if not local.segment_id:
            view = memoryview(local.inline_payload)
        else:
            view = self._map.view(local.segment_id, local.total_bytes)
            # torch.frombuffer keeps this very memoryview alive as long as any tensor over it lives.
            weakref.finalize(view, self._dead_segments.append, local.segment_id).atexit = False
        if local.codec in PLAIN:
            return tensors.from_buffer(view, local.dtype, tuple(local.shape))
        return codecs.decode(view, local.codec, local.dtype, tuple(local.shape))

    def _describe(self, link: Link, local: local_pb2.LocalTensor, leaf: Tensor, codec: int) -> tuple[int, ...]:
        """Fill in what the tensor is and where its bytes are; gives the descriptor that must go with it, if any."""
        local.dtype = tensors.element_type_of(leaf)  # type: ignore[assignment]
        local.shape.extend(leaf.shape)
        local.requires_grad = leaf.requires_grad
        form = codecs.codec_for(codec, leaf)
        if form != types_pb2.CODEC_NONE and (coded := self._coded(link, local, leaf, form)) is not None:
            return coded
        local.total_bytes = tensors.num_bytes(leaf)
        if local.total_bytes <= INLINE_PAYLOAD_BYTES:
            local.inline_payload = bytes(tensors.tensor_bytes(leaf))
            return ()
        segment = self._pool.allocate(local.total_bytes)
        tensors.copy_into(leaf, segment.view[: local.total_bytes])
        return self._lend(link, local, segment)

    def _coded(self, link: Link, local: local_pb2.LocalTensor, leaf: Tensor, codec: int) -> tuple[int, ...] | None:
        """The same in a codec; None: it cannot hold this tensor."""
        num_bytes = payload_bytes(codec, local.dtype, leaf.shape)
        segment = self._pool.allocate(num_bytes) if num_bytes > INLINE_PAYLOAD_BYTES else None
        view = memoryview(bytearray(num_bytes)) if segment is None else segment.view[:num_bytes]
        if not codecs.encode(leaf, codec, view):
            if segment is not None:
                self._pool.take_back(segment)
            return None
        if self._num_coded[link] % _MEASURE_EVERY == 0:
            decoded = codecs.decode(view, codec, local.dtype, leaf.shape)
            local.relative_error = codecs.relative_error(leaf, decoded)
        self._num_coded[link] += 1
        local.codec = codec  # type: ignore[assignment]
        local.total_bytes = num_bytes
        if segment is not None:
            return self._lend(link, local, segment)
        local.inline_payload = bytes(view)
        return ()

    def _lend(self, link: Link, local: local_pb2.LocalTensor, segment: Segment) -> tuple[int, ...]:
        """The tensor lies in this segment until the other side gives it back; gives the descriptor to send along."""
        self._lent[segment.segment_id] = link, segment.size
        self.ahead_bytes[link] += segment.size
        local.segment_id = segment.segment_id
        if not segment.is_new:
            return ()
        local.new_segment_bytes = segment.size
        return (segment.fd,)
