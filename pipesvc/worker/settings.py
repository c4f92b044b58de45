"""What `pipesvc worker` is told, checked before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import parse

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MAX_THREADS: Final = 1024
_SIZE: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>[KMGT]?)(iB)?", re.IGNORECASE)
_MAX_MEMORY_BYTES: Final = 2**63
_UNITS: Final = ("", "K", "M", "G", "T")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """One worker process. Malformed values raise INVALID_JOB at birth; devices are checked on start."""

    coordinator: str
    """HOST:PORT of the coordinator."""
    name: str
    """Unique among the workers of a cluster; jobs place stages by it."""
    device: str = "cpu"
    """ "cpu", "cuda:0" or several with commas between."""
    listen: str = "127.0.0.1:0"
    """Where other workers and clients reach this one's data server."""
    advertise: str = ""
    """The data server's address as others shall dial it; empty: the one it listens on."""
    num_threads: int = 0
    """Threads of an executor; 0: the coordinator shares out the cores of the host."""
    memory: str = ""
    """The most that stages may take, such as "8GiB"; empty: all memory of the host, and of each GPU."""
    token_file: Path | None = None
    """Where the coordinator's token lies; None: found by environment or by the address."""
    is_insecure: bool = False
    """Listen on an address that faces the network."""
    has_checksums: bool = True
    """Send a CRC-32C with every chunk of a tensor; those that arrive are checked in any case."""
    coordinator_wait_s: float = 600.0
    """How long to dial a coordinator that is not there, at the start and later."""

    def __post_init__(self) -> None:
        parse(self.coordinator, option="--coordinator")
        parse(self.listen, option="--listen")
        if self.advertise:
            said = parse(self.advertise, option="--advertise")
            if said.port == 0 or said.is_wildcard:
                message = f"--advertise {self.advertise} is nothing that others can dial"
                raise PipesvcError(ErrorCode.INVALID_JOB, message, advice="Give the host and port as others reach them")
        if _NAME.fullmatch(self.name) is None:
            advice = "Use up to 63 letters, digits, dots, dashes and underscores"
            raise PipesvcError(ErrorCode.INVALID_JOB, f"{self.name!r} is no name for a worker", advice=advice)
        if not 0 <= self.num_threads <= _MAX_THREADS:
            message = f"--threads {self.num_threads} is not between 0 and {_MAX_THREADS}"
            raise PipesvcError(ErrorCode.INVALID_JOB, message)
        self.memory_limit_bytes  # noqa: B018 (refuses a malformed one)
        if not self.coordinator_wait_s >= 0:
            raise PipesvcError(ErrorCode.INVALID_JOB, f"--coordinator-wait {self.coordinator_wait_s:g} is negative")

    @property
    def memory_limit_bytes(self) -> int:
        """0: nothing was said."""
        if not self.memory:
            return 0
        found = _SIZE.fullmatch(self.memory)
        num_bytes = float(found["number"]) * 1024 ** _UNITS.index(found["unit"].upper()) if found else 0.0
        if not 1 <= num_bytes < _MAX_MEMORY_BYTES:
            advice = "Write a number of bytes, or one with a unit of 1024: 512MiB, 8GiB"
            message = f"--memory {self.memory!r} is no size that a host can have"
            raise PipesvcError(ErrorCode.INVALID_JOB, message, advice=advice)
        return int(num_bytes)
