"""What a link has sent, as users see it: a tensor counts once, however often a break made it go again."""

from __future__ import annotations

from dataclasses import dataclass

from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.elements import total_bytes
from pipesvc.wire.frames import FrameHeader


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkCounts:
    """Frames and wire bytes include what was sent again after a break."""

    tensor_bytes: int = 0
    wire_bytes: int = 0
    num_frames: int = 0
    coded_bytes: int = 0  # of the tensors in the form in which they travelled
    relative_error: float = 0.0  # the largest that was measured


class LinkTally:
    """Counts of one sender."""

    def __init__(self) -> None:
        self._counted_sequence = 0
        self._tensor_bytes = self._wire_bytes = self._num_frames = self._coded_bytes = 0
        self._relative_error = 0.0

    @property
    def counts(self) -> LinkCounts:
        return LinkCounts(
            tensor_bytes=self._tensor_bytes,
            wire_bytes=self._wire_bytes,
            num_frames=self._num_frames,
            coded_bytes=self._coded_bytes,
            relative_error=self._relative_error,
        )

    def erred(self, relative_error: float) -> None:
        """Coding a tensor has made this error."""
        self._relative_error = max(self._relative_error, relative_error)

    def sent(self, header: FrameHeader, payload_bytes: int, frame_bytes: int) -> None:
        """A frame has been handed out."""
        self._num_frames += 1
        self._wire_bytes += frame_bytes
        if header.chunk_offset + payload_bytes < header.total_bytes or header.sequence <= self._counted_sequence:
            return
        self._counted_sequence = header.sequence
        self._coded_bytes += header.total_bytes
        is_coded = header.codec != types_pb2.CODEC_NONE
        self._tensor_bytes += total_bytes(header.dtype, header.shape) if is_coded else header.total_bytes
