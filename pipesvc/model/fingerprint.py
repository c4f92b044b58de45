"""What the bits of a computation depend on, apart from the computation: torch, its instructions, threads, devices.

Equal seeds and equal arithmetic give equal bits only between processes in which this text is the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import torch

_THREADS: Final = re.compile(r"(\d+) threads")


def numeric_fingerprint(device_types: Collection[str]) -> str:
    """Of this process, for computations on devices of these types."""
    return (
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} threads, {'+'.join(sorted(set(device_types)))}"
    )


def threads_in(fingerprint: str) -> int | None:
    """How many threads a process with this fingerprint has; None if it does not say."""
    found = _THREADS.search(fingerprint)
    return int(found[1]) if found else None
