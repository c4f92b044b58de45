"""How glibc's allocator hands memory back, which decides the peak of a build and the speed of training.

While a model is built, tensors of other stages come and go. glibc raises its mmap threshold after the first large
free and then keeps freed blocks of 16 MB and more in its heap: 800 MB instead of 330 MB at the peak of a 1 GB model.
So the threshold is held at 1 MiB while building. Left there, training pays for it: every activation is a fresh
mapping, 11,000 to 18,000 page faults and about a tenth of the time of a micro-batch. So it is raised to the most that
glibc takes afterwards. Other allocators are left alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

_TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD of malloc.h
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD

_BUILDING_MMAP_BYTES: Final = 1 << 20
_BUILDING_TRIM_BYTES: Final = 1 << 20
_TRAINING_MMAP_BYTES: Final = 32 << 20  # more is refused on 64 bits
_TRAINING_TRIM_BYTES: Final = 512 << 20


@contextmanager
def while_building() -> Iterator[None]:
    """Freed tensors go back to the system inside, and are kept for the next one afterwards."""
    _set(_BUILDING_MMAP_BYTES, _BUILDING_TRIM_BYTES)
    try:
        yield
    finally:
        libc = _libc()
        if libc is not None:
            libc.malloc_trim(0)
        _set(_TRAINING_MMAP_BYTES, _TRAINING_TRIM_BYTES)


def _set(mmap_bytes: int, trim_bytes: int) -> bool:
    """Whether the allocator took it."""
    libc = _libc()
    if libc is None:
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, mmap_bytes) == 1 and libc.mallopt(_TRIM_THRESHOLD, trim_bytes) == 1)


@cache
def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version") else None
