"""Ending tasks that wait for gRPC.

grpc.aio can lose a cancellation: where the end of the call comes in the same turn of the loop, it raises that instead,
and a task that dials again after a break takes it for one (grpcio 1.84 and 1.85: one of some 1,600 links that were
closed while the receiver refused them). So a task is cancelled again until it is over, or until it has had so many
chances that something else must hold it, which is said.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterable
from typing import Any, Final

_AGAIN_S: Final = 0.2
_MOST_TIMES: Final = 25

_log = logging.getLogger("pipesvc.net")


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel, and wait for the end, 5 s at most; what the tasks raised is dropped."""
    ended: set[asyncio.Task[Any]] = set()
    remaining = set(tasks)
    for _ in range(_MOST_TIMES):
        if not remaining:
            break
        for task in remaining:
            task.cancel()
        newly_ended, remaining = await asyncio.wait(remaining, timeout=_AGAIN_S)
        ended |= newly_ended
    for task in remaining:
        _log.error("%r goes on after it was cancelled %d times; it is left alone", task.get_name(), _MOST_TIMES)
    for task in ended:
        try:
            forget_frames(task.exception())
        except asyncio.CancelledError as cancelled:  # the task keeps it until it is asked
            forget_frames(cancelled)


def forget_frames(error: BaseException | None) -> None:
    """Frames of what ended a stream hold the call, and that its socket, until the collector of cycles comes by."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)
