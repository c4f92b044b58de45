"""Reads ranges of the files with weights and training state that a job names, through the agent, from the coordinator.

A child has no other way to the coordinator than its own commands and reports, and needs none: a question is a range,
and a few questions are under way at a time, so that neither side holds more than a few pieces of the file.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.safetensors_stream import MAX_HEADER_BYTES, Layout, parse_layout
from pipesvc.worker.port import ParcelArrived
from pipesvc.worker.port_like import PortLike

PIECE_BYTES: Final = 128 * 1024
_NUM_AHEAD: Final = 16
# A coordinator that is busy answers later; one that is gone takes the whole child away.
_WAIT_S: Final = 60.0


class WeightsReader:
    """For a child that is not yet ready: of what else may come then, only the order to stop matters.

    `name` is what errors call the file; `is_training`: that with the training state.
    """

    def __init__(self, port: PortLike, name: str, *, is_training: bool = False) -> None:
        self._port = port
        self._name = name
        self._is_training = is_training
        self._total_bytes = 0
        self._layout: Layout | None = None

    def layout(self) -> Layout:
        """The header of the file; refuses what is no safetensors file."""
        if self._layout is None:
            prefix = memoryview(bytearray(8))
            self.read_into(0, prefix)
            num_bytes = min(8 + int.from_bytes(prefix, "little"), 8 + MAX_HEADER_BYTES, self._total_bytes)
            header = memoryview(bytearray(num_bytes))
            self.read_into(0, header)
            self._layout = parse_layout(bytes(header), self._total_bytes, self._name)
        return self._layout

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes of the file from `offset` on."""
        asked: deque[tuple[int, int]] = deque()
        num_asked = num_read = 0
        while num_read < len(target):
            while num_asked < len(target) and len(asked) < _NUM_AHEAD:
                num_bytes = min(PIECE_BYTES, len(target) - num_asked)
                ask = local_pb2.ReadWeights(
                    offset=offset + num_asked, num_bytes=num_bytes, is_training=self._is_training
                )
                self._port.report(local_pb2.FromChild(read_weights=ask))
                asked.append((offset + num_asked, num_bytes))
                num_asked += num_bytes
            for piece in self._pieces():
                due, num_bytes = asked.popleft()
                if piece.offset != due or len(piece.data) != num_bytes:
                    raise PipesvcError(
                        ErrorCode.INVALID_JOB,
                        f"{self._name} ends within a tensor: {len(piece.data)} of {num_bytes} bytes at {due}",
                        advice="Is the file whole?",
                    )
                self._total_bytes = piece.total_bytes
                target[num_read : num_read + num_bytes] = piece.data
                num_read += num_bytes

    def _pieces(self) -> list[local_pb2.WeightsPiece]:
        events = self._port.poll(_WAIT_S)
        if not events:
            raise PipesvcError(ErrorCode.TIMED_OUT, f"no piece of {self._name} came within {_WAIT_S:g} s")
        pieces = []
        for event in events:
            if isinstance(event, ParcelArrived):
                continue
            if event.HasField("stop"):
                raise SystemExit(event.stop.reason)
            if event.HasField("weights_piece"):
                pieces.append(event.weights_piece)
        return pieces
