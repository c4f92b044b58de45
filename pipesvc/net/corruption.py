"""What a receiver does with chunks that were changed on their way.

One flipped bit is not the end of a run: nothing of such a chunk is kept, its stream ends, and the sender, which dials
again, begins at the first tensor that is not acknowledged. What changes bytes again and again is, by name.
"""

from __future__ import annotations

import logging
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.wire.checksum import crc32c
from pipesvc.wire.frames import FrameHeader
from pipesvc.wire.links import Link

# Changed chunks between two whole tensors, with which a link is given up.
MAX_CORRUPT: Final = 3

_log = logging.getLogger("pipesvc.links")


class CorruptError(PipesvcError):
    """Ends one stream and not its link: the sender gets no report of an error, so it dials again and goes on."""


class Corruption:
    """Of one link, over all its streams."""

    def __init__(self, link: Link, run_id: str) -> None:
        self._link: Final = link
        self._run_id: Final = run_id
        self._num_corrupt = 0

    def check(self, header: FrameHeader, payload: memoryview) -> None:
        """Raises CorruptError, or BAD_FRAME when it is once too often. A frame without a checksum passes."""
        if header.crc32c is None or header.crc32c == crc32c(payload):
            return
        self._num_corrupt += 1
        size = f"{payload.nbytes} bytes of tensor {header.sequence}"
        text = f"{size} came over {self._link} with another checksum than they were sent with"
        where = Where(run_id=self._run_id, step=header.step, micro_batch=header.micro_batch)
        if self._num_corrupt >= MAX_CORRUPT:
            advice = "Look for what changes bytes on the way: a proxy, a network card, bad memory of a host"
            raise PipesvcError(
                ErrorCode.BAD_FRAME, f"{text}, {self._num_corrupt} times in a row", advice=advice, where=where
            )
        error = CorruptError(ErrorCode.BAD_FRAME, text, where=where)
        _log.warning("%s; its sender begins it anew", error)
        raise error

    def passed(self) -> None:
        """A tensor came whole."""
        self._num_corrupt = 0
