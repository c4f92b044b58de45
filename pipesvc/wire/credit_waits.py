"""For how long something has waited for a receiver's credit: what many links have waited together counts once.

A process sends on several links, and what it wants to know of its own idle time is whether any of them held something
back. Pure: times are nanoseconds on whatever clock the caller has, as long as it is always the same.
"""

from __future__ import annotations

from collections.abc import Hashable


class CreditWaits:
    """The union of the intervals in which somebody had something to send and might not: a link, or another name."""

    def __init__(self) -> None:
        self._waiting: set[Hashable] = set()
        self._ended_ns = 0
        self._since_ns = 0

    def change(self, who: Hashable, now_ns: int, *, is_waiting: bool) -> None:
        """From now on this one waits, or does not; it may have been so before."""
        if is_waiting and not self._waiting:
            self._since_ns = now_ns
        was_waiting = bool(self._waiting)
        (self._waiting.add if is_waiting else self._waiting.discard)(who)
        if was_waiting and not self._waiting:
            self._ended_ns += max(0, now_ns - self._since_ns)
            self._since_ns = 0

    def __contains__(self, who: Hashable) -> bool:
        """Whether this one waits."""
        return who in self._waiting

    @property
    def parts(self) -> tuple[int, int]:
        """How long all waits that have ended took, and since when one is under way; 0: none is."""
        return self._ended_ns, self._since_ns


def total_ns(parts: tuple[int, int], now_ns: int) -> int:
    """What `CreditWaits.parts` comes to by now."""
    ended_ns, since_ns = parts
    return ended_ns + (max(0, now_ns - since_ns) if since_ns else 0)
