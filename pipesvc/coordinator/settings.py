"""What `pipesvc coordinator` is told, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipesvc.net.addresses import parse


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorSettings:
    """One coordinator. A malformed address raises INVALID_JOB at birth."""

    listen: str
    """HOST:PORT for clients and workers; port 0 takes a free one."""
    state_dir: Path
    """Journal, bundles, weights, logs and the token; two coordinators cannot share it."""
    is_insecure: bool = False
    """Listen on an address that faces the network."""

    def __post_init__(self) -> None:
        parse(self.listen, option="--listen")
