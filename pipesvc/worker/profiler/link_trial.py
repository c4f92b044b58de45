"""The way from one worker's process to another's, measured where a run uses it.

Between two echoing sockets one would measure the network. A stage's tensor goes from its process through a segment, its
agent, gRPC, the other agent and another segment; so two profilers send each other parcels exactly as executors do, and
only one clock is read. A payload goes on the activation link and is answered, when it is whole, by a small one on the
gradient link back.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Final, NoReturn

import torch
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.port import ParcelArrived
from pipesvc.worker.port_like import PortLike

# Longer than a link takes to be given up, which is told with its reason.
ANSWER_LIMIT_S: Final = 15.0
# Each of the two measurements of a link goes on for so long.
WINDOW_S: Final = 0.3
MAX_REPEATS: Final = 20
SMALL_BYTES: Final = 1 << 10
# The second one only where the first takes no longer than this, so that a slow link is not filled for a minute.
LARGE_BYTES: Final = (256 << 10, 4 << 20)
SLOW_S: Final = 0.25


class LinkTrials:
    """For one profiler; never returns from `serve`, since the agent ends a profiler when its work is done."""

    def __init__(self, port: PortLike, endpoint: int) -> None:
        self._port = port
        self._endpoint = endpoint
        self._events: deque[local_pb2.ToChild | ParcelArrived] = deque()
        self._num_sent = 0

    def serve(self) -> NoReturn:
        """Answer other profilers, and measure when asked."""
        while True:
            self.turn(None)

    def turn(self, timeout_s: float | None) -> None:
        """Take in one thing, which is waited for at most so long."""
        self._obey(self._next(timeout_s))

    def measure(self, peer: int, worker: str) -> local_pb2.LinkProfile:
        """Latency and bandwidth to the profiler on `worker`. LINK_LOST if it does not answer."""
        self._round_trip(peer, worker, _payload(SMALL_BYTES))  # dials
        small_s = self._median(peer, worker, SMALL_BYTES)
        for size in LARGE_BYTES:
            self._round_trip(peer, worker, _payload(size))  # makes the segments
            large_s = self._median(peer, worker, size)
            if large_s > SLOW_S:
                break
        # Noise may make the difference nothing, and then all of it is taken for the bytes.
        bytes_s = large_s - small_s if large_s > small_s else large_s
        return local_pb2.LinkProfile(
            endpoint=peer,
            latency_s=small_s / 2,
            bytes_per_s=size / bytes_s,
            way=self._port.way_of(self._to(peer)),  # type: ignore[arg-type]
        )

    def _to(self, peer: int) -> Link:
        return Link(self._endpoint, peer, types_pb2.LINK_KIND_ACTIVATION)

    def _median(self, peer: int, worker: str, size: int) -> float:
        payload, begin_s = _payload(size), time.perf_counter()
        found: list[float] = []
        while not found or (len(found) < MAX_REPEATS and time.perf_counter() - begin_s < WINDOW_S):
            found.append(self._round_trip(peer, worker, payload))
        return statistics.median(found)

    def _round_trip(self, peer: int, worker: str, payload: Tensor) -> float:
        self._num_sent += 1
        answer = Link(peer, self._endpoint, types_pb2.LINK_KIND_GRADIENT)
        begin_s = time.perf_counter()
        self._port.send_parcel(self._to(peer), self._num_sent, 0, payload)
        while (left_s := begin_s + ANSWER_LIMIT_S - time.perf_counter()) > 0:
            event = self._next(left_s)
            if isinstance(event, ParcelArrived) and event.link == answer:
                end_s = time.perf_counter()
                self._port.consumed(answer)
                return end_s - begin_s
            if event is not None:
                self._obey(event)
        raise PipesvcError(
            ErrorCode.LINK_LOST,
            f"the profiler on worker {worker} did not answer over the data link within {ANSWER_LIMIT_S:g} s",
            advice="See whether that worker runs and can be reached from this host: `pipesvc status`",
        )

    def _next(self, timeout_s: float | None) -> local_pb2.ToChild | ParcelArrived | None:
        if not self._events:
            self._events.extend(self._port.poll(timeout_s))
        return self._events.popleft() if self._events else None

    def _obey(self, event: local_pb2.ToChild | ParcelArrived | None) -> None:
        if isinstance(event, ParcelArrived):
            link = event.link
            self._port.consumed(link)
            back = Link(link.consumer, link.producer, types_pb2.LINK_KIND_GRADIENT)
            self._port.send_parcel(back, event.step, event.micro_batch, _payload(SMALL_BYTES))
        elif event is not None and event.HasField("measure_link"):
            wanted = event.measure_link
            try:
                profile = self.measure(wanted.endpoint, wanted.worker)
            except PipesvcError as error:
                profile = local_pb2.LinkProfile(endpoint=wanted.endpoint, problem=str(error))
            self._port.report(local_pb2.FromChild(link_profile=profile))


def _payload(num_bytes: int) -> Tensor:
    return torch.zeros(num_bytes // 4)
