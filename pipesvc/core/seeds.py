"""Seeds for every place that draws random numbers, each from the job's one seed and the name of the place.

`seed + step` gives the same stream to neighbours of neighbouring seeds, and a generator that is simply used on
depends on who drew before, so on the partition. A hash of seed and path does neither: stage, step and micro-batch fix
the draw.
"""

from __future__ import annotations

import hashlib


def derive(seed: int, *path: int | str) -> int:
    """A seed of 63 bits for this path. Different paths, also of equal concatenation or type, give unrelated seeds."""
    digest = hashlib.blake2b(digest_size=8, person=b"pipesvc-seed-v1")
    for part in (seed, *path):
        text = f"i{part:d}" if isinstance(part, int) else f"s{part}"
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return int.from_bytes(digest.digest(), "big") >> 1
