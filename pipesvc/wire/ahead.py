"""How far whoever makes parcels may run ahead of a receiver that does not take them: the bound in bytes.

A receiver's credit counts parcels, for that is what a schedule needs, and bounds what the receiver holds. What is sent
beyond it waits in the sender's memory. In training the schedule bounds that too: a stage has no more parcels on their
way than micro-batches in flight. A pass of forwards alone (evaluation, prediction) has no such limit: a first stage
that is faster than the last one would make all activations of all the passes that are issued. So there the sender
stops, by bytes, however large its parcels are: while it has less than `AHEAD_BYTES` on a link it may make one more.
So one always passes, whatever its size, and at most `AHEAD_BYTES` and one parcel wait. What travels inside messages
(tensors up to 16 KiB each) goes uncounted on its way to the agent.

Nothing gets stuck: in a pass of forwards all links lead onwards, so the earliest micro-batch that is not through yet
finds nothing before it on any link.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# For each link. 50 ms of a way of 10 Gbit/s: the receiver's word that it has something is never late for want of more.
AHEAD_BYTES: Final = 64 << 20


def has_room(ahead_bytes: int) -> bool:
    """Whether one more parcel may be made for a link that has so much ahead of its receiver."""
    return ahead_bytes < AHEAD_BYTES


class Ahead:
    """The bytes of the parcels of one link that its receiver has not taken."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._num_taken = 0
        self.num_bytes = 0

    def made(self, num_bytes: int) -> None:
        """One more parcel, of so many bytes."""
        self._sizes.append(num_bytes)
        self.num_bytes += num_bytes

    def taken(self, num_parcels: int) -> None:
        """The receiver has taken so many parcels since the link began (an absolute count)."""
        while self._num_taken < num_parcels and self._sizes:
            self._num_taken += 1
            self.num_bytes -= self._sizes.popleft()
