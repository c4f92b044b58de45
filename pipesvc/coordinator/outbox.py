"""What waits to be sent to one worker process.

It belongs to the process and not to its stream: when a stream breaks and the worker comes back on another within the
beat timeout, what had not been taken by then goes out on the new one, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from pipesvc.rpc.v1 import types_pb2, worker_pb2

# Commands are few: steps are bounded by the window, starts by the runs. A worker that lets this many wait takes none.
MAX_WAITING: Final = 10_000


class Outbox:
    """For the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: deque[worker_pb2.AttachResponse] = deque()
        self._filled = asyncio.Event()
        self.is_overfull = False

    def put(self, message: worker_pb2.AttachResponse) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.is_overfull = True
            return
        self._waiting.append(message)
        self._filled.set()

    async def first(self) -> worker_pb2.AttachResponse:
        """The next message, which stays until `drop_first`."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting[0]

    def drop_first(self) -> None:
        self._waiting.popleft()


class Session:
    """One stream of a worker. `ended` is set when the coordinator ends it, with the error to say."""

    def __init__(self, number: int, incarnation: str, outbox: Outbox) -> None:
        self.number = number
        self.incarnation = incarnation
        self.outbox = outbox
        self.ended: asyncio.Future[types_pb2.ErrorReport] = asyncio.get_running_loop().create_future()

    def end(self, error: types_pb2.ErrorReport) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
