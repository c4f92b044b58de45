"""Batches that the client's process streams, in the place of a reader.

The link's credit is the permit: a parcel counts as consumed only when a permit is free for it, so a client that is
faster than the training is held back by `capacity` and the link's window, and its own memory is bounded too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.links import CLIENT, FEEDER, Link
from pipesvc.worker.feeder.batches import raw_batch
from pipesvc.worker.feeder.reader import Arrival, SourceEnded
from pipesvc.worker.feeder.source import Reading
from pipesvc.worker.port import ParcelArrived

STREAM_LINK: Final = Link(CLIENT, FEEDER, types_pb2.LINK_KIND_STREAM)
# What the client sends after its last batch.
END_MARKER: Final[dict[str, Any]] = {"end": True}


class StreamReader:
    """Has the methods of `Reader` that the feeder calls, without a thread: parcels come in through `offer`."""

    def __init__(self, reading: Reading, num_permits: int, consume: Callable[[], None]) -> None:
        self._reading = reading
        self._gate = reading.gate()
        self._num_permits = num_permits
        self._consume = consume
        self._backlog: deque[ParcelArrived] = deque()
        self._arrivals: list[Arrival] = []
        self._num_parcels = 0
        self._num_steps = reading.start.step
        self._has_ended = False
        self._since_s: float | None = time.monotonic()

    def start(self) -> None:
        self._since_s = time.monotonic()

    def close(self, wait_s: float) -> None:
        self._backlog.clear()

    def offer(self, parcel: ParcelArrived) -> None:
        self._backlog.append(parcel)
        self._admit()

    def give_permit(self) -> None:
        self._num_permits += 1
        self._admit()

    def take(self) -> list[Arrival]:
        taken, self._arrivals = self._arrivals, []
        return taken

    def reading_since_s(self) -> float | None:
        """When the client was last free to send, if nothing has come since; else None."""
        return self._since_s

    def stuck_at(self) -> str:
        return ""

    def _admit(self) -> None:
        start_ns = time.time_ns()
        while self._backlog and self._num_permits > 0 and not self._has_ended:
            parcel = self._backlog.popleft()
            self._consume()
            for arrival in self._arrivals_of(parcel):
                self._num_permits -= 1
                if not isinstance(arrival, SourceEnded | PipesvcError):
                    arrival.read_start_ns, arrival.read_end_ns = start_ns, time.time_ns()
                self._arrivals.append(arrival)
        is_awaiting = self._num_permits > 0 and not self._has_ended
        self._since_s = time.monotonic() if is_awaiting else None

    def _arrivals_of(self, parcel: ParcelArrived) -> list[Arrival]:
        self._num_parcels += 1
        if parcel.step != self._num_parcels:
            raise PipesvcError(
                ErrorCode.BAD_FRAME,
                f"batch {parcel.step} came on link {STREAM_LINK} where batch {self._num_parcels} was due",
                where=self._reading.where,
            )
        value = parcel.value()
        is_end = not parcel.leaves and value == END_MARKER
        try:
            steps = self._gate.end() if is_end else self._gate.push(raw_batch(0, value, self._reading.data.has_labels))
        except PipesvcError as error:
            raise error.at(self._reading.where) from error
        max_steps = self._reading.max_steps
        if max_steps:
            steps = steps[: max_steps - self._num_steps]
        self._num_steps += len(steps)
        arrivals: list[Arrival] = list(steps)
        if is_end or (max_steps and self._num_steps == max_steps):
            self._has_ended = True
            arrivals.append(SourceEnded())
        return arrivals
