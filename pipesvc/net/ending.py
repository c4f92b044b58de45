"""Ending tasks that wait for gRPC.

grpc.aio can lose a cancellation: where the end of the call comes in the same turn of the loop, it raises that instead,
and a task that dials again after a break takes it for one (grpcio 1.84 and 1.85: one of some 1,600 links that were
closed while the receiver refused them). So a task is cancelled again until it is over.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable
from typing import Any, Final

_AGAIN_S: Final = 0.2


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel, and wait for the end; what the tasks raised is dropped."""
    ended = list(tasks)
    remaining = set(ended)
    while remaining:
        for task in remaining:
            task.cancel()
        _, remaining = await asyncio.wait(remaining, timeout=_AGAIN_S)
    for task in ended:
        try:
            forget_frames(task.exception())
        except asyncio.CancelledError as cancelled:  # the task keeps it until it is asked
            forget_frames(cancelled)


def forget_frames(error: BaseException | None) -> None:
    """Frames of what ended a stream hold the call, and that its socket, until the collector of cycles comes by."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)
