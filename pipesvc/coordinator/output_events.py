"""The events and commands (see `events`) of the outputs of predictions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderCame:
    """A client reads the outputs of a prediction."""

    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderWent:
    """Its call has ended."""

    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputsTaken:
    """The client has the outputs up to this batch."""

    run_id: str
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesFailed:
    """Outputs could not be stored, or weights to begin with not be read."""

    run_id: str
    problem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DropOutputs:
    """The outputs of this batch are with the client."""

    run_id: str
    step: int
