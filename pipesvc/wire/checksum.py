"""The checksum of a payload: what TCP, a proxy or bad memory let through is a wrong number that nobody sees."""

from __future__ import annotations

import google_crc32c


def crc32c(payload: memoryview) -> int:
    """CRC-32C (Castagnoli), 32 bits.

    The library takes no memoryviews. The copy of a chunk costs 0.01 CPU seconds per GB more than wrapping it with numpy
    (0.1 in all), which an agent then need not import.
    """
    value: int = google_crc32c.value(bytes(payload))
    return value
