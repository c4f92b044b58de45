"""Every error that pipesvc raises on purpose, in one table.

An error of a distributed run is read far from where it happened, so it is a value first: a code, a place (run, step,
stage, micro-batch, worker, host) and the way out. `net.reports` carries it between processes as an `ErrorReport`
message; this module knows neither gRPC nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final


class ErrorCode(StrEnum):
    """What went wrong, for programs. The text after each member is its meaning in full."""

    INVALID_JOB = "INVALID_JOB"  # the job contradicts itself or the model
    INVALID_PLAN = "INVALID_PLAN"  # schedule or stages cannot run as asked
    UNKNOWN_DEVICE = "UNKNOWN_DEVICE"  # a mark or device that no worker has
    UNKNOWN_WORKER = "UNKNOWN_WORKER"  # a placement names a worker that is not registered
    MISSING_WORKER = "MISSING_WORKER"  # not enough workers came in time
    IMPORT_FAILED = "IMPORT_FAILED"  # user code or a package of it does not import on a worker
    BUILD_FAILED = "BUILD_FAILED"  # the model, the optimizer or the source could not be made
    BUILD_TIMED_OUT = "BUILD_TIMED_OUT"
    STAGE_FAILED = "STAGE_FAILED"  # an exception of user code in forward, backward or update
    STEP_TIMED_OUT = "STEP_TIMED_OUT"
    NON_FINITE_LOSS = "NON_FINITE_LOSS"
    DATA_SOURCE_FAILED = "DATA_SOURCE_FAILED"
    DATA_SOURCE_TIMED_OUT = "DATA_SOURCE_TIMED_OUT"
    CHILD_DIED = "CHILD_DIED"  # an executor, feeder or inspector ended without saying why
    WORKER_LOST = "WORKER_LOST"
    WORKER_NAME_TAKEN = "WORKER_NAME_TAKEN"
    COORDINATOR_ABSENT = "COORDINATOR_ABSENT"  # nothing answers at that address
    COORDINATOR_LOST = "COORDINATOR_LOST"  # it answered before and does not now
    COORDINATOR_RESTARTED = "COORDINATOR_RESTARTED"  # the run was live when the coordinator ended
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PORT_TAKEN = "PORT_TAKEN"
    NOT_LOOPBACK = "NOT_LOOPBACK"  # a port would face the network without `--insecure`
    WIRE_MISMATCH = "WIRE_MISMATCH"
    BAD_FRAME = "BAD_FRAME"
    STALE_TERM = "STALE_TERM"
    LINK_LOST = "LINK_LOST"  # a data link broke and did not come back in time
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    RUN_EXISTS = "RUN_EXISTS"  # the run id is in use for another job
    RUN_CANCELLED = "RUN_CANCELLED"
    WEIGHTS_NOT_READY = "WEIGHTS_NOT_READY"
    BUNDLE_REFUSED = "BUNDLE_REFUSED"  # user code that cannot travel, or is too large
    TIMED_OUT = "TIMED_OUT"  # another named wait ran out
    INTERNAL = "INTERNAL"  # a fault of pipesvc itself


# code -> (gRPC status name, exit code of the CLI). Total: a test walks the enum.
CATALOGUE: Final[dict[ErrorCode, tuple[str, int]]] = {
    ErrorCode.INVALID_JOB: ("INVALID_ARGUMENT", 2),
    ErrorCode.INVALID_PLAN: ("INVALID_ARGUMENT", 2),
    ErrorCode.UNKNOWN_DEVICE: ("INVALID_ARGUMENT", 2),
    ErrorCode.UNKNOWN_WORKER: ("INVALID_ARGUMENT", 2),
    ErrorCode.MISSING_WORKER: ("FAILED_PRECONDITION", 3),
    ErrorCode.IMPORT_FAILED: ("FAILED_PRECONDITION", 4),
    ErrorCode.BUILD_FAILED: ("FAILED_PRECONDITION", 4),
    ErrorCode.BUILD_TIMED_OUT: ("DEADLINE_EXCEEDED", 5),
    ErrorCode.STAGE_FAILED: ("ABORTED", 4),
    ErrorCode.STEP_TIMED_OUT: ("DEADLINE_EXCEEDED", 5),
    ErrorCode.NON_FINITE_LOSS: ("ABORTED", 4),
    ErrorCode.DATA_SOURCE_FAILED: ("ABORTED", 4),
    ErrorCode.DATA_SOURCE_TIMED_OUT: ("DEADLINE_EXCEEDED", 5),
    ErrorCode.CHILD_DIED: ("ABORTED", 6),
    ErrorCode.WORKER_LOST: ("ABORTED", 6),
    ErrorCode.WORKER_NAME_TAKEN: ("ALREADY_EXISTS", 7),
    ErrorCode.COORDINATOR_ABSENT: ("UNAVAILABLE", 8),
    ErrorCode.COORDINATOR_LOST: ("UNAVAILABLE", 8),
    ErrorCode.COORDINATOR_RESTARTED: ("ABORTED", 6),
    ErrorCode.UNAUTHENTICATED: ("UNAUTHENTICATED", 9),
    ErrorCode.PORT_TAKEN: ("FAILED_PRECONDITION", 7),
    ErrorCode.NOT_LOOPBACK: ("FAILED_PRECONDITION", 2),
    ErrorCode.WIRE_MISMATCH: ("FAILED_PRECONDITION", 7),
    ErrorCode.BAD_FRAME: ("INVALID_ARGUMENT", 7),
    ErrorCode.STALE_TERM: ("FAILED_PRECONDITION", 7),
    ErrorCode.LINK_LOST: ("ABORTED", 6),
    ErrorCode.RUN_NOT_FOUND: ("NOT_FOUND", 2),
    ErrorCode.RUN_EXISTS: ("ALREADY_EXISTS", 2),
    ErrorCode.RUN_CANCELLED: ("CANCELLED", 10),
    ErrorCode.WEIGHTS_NOT_READY: ("FAILED_PRECONDITION", 3),
    ErrorCode.BUNDLE_REFUSED: ("INVALID_ARGUMENT", 2),
    ErrorCode.TIMED_OUT: ("DEADLINE_EXCEEDED", 5),
    ErrorCode.INTERNAL: ("INTERNAL", 1),
}


# A line that people read; a user's exception may say a whole tensor.
MAX_MESSAGE_CHARS: Final = 2_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """The place of an error; what is unknown stays at its default."""

    run_id: str = ""
    step: int | None = None
    stage: int | None = None
    micro_batch: int | None = None
    worker: str = ""
    host: str = ""

    def __str__(self) -> str:
        parts = [
            ("run", self.run_id or None),
            ("step", self.step),
            ("stage", self.stage),
            ("micro-batch", self.micro_batch),
            ("worker", self.worker or None),
            ("host", self.host or None),
        ]
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


@dataclass(frozen=True, kw_only=True)
class ErrorDetails:
    """Everything that is known about one error, apart from Python's exception machinery."""

    code: ErrorCode
    message: str
    advice: str = ""
    where: Where = field(default_factory=Where)
    exception_type: str = ""
    traceback: str = ""
    last_words: str = ""
    is_echo: bool = False

    def __str__(self) -> str:
        place = str(self.where)
        text = f"{self.code}: {self.message}"
        if place:
            text += f" ({place})"
        if self.advice:
            text += f". {self.advice}"
        return text


def printable(text: str) -> str:
    """Control characters of all kinds, and halves of characters, as they are written in code.

    What user code says may hold some that change a terminal, or that no message can carry.
    """
    return "".join(each if each.isprintable() or each in "\n\t" else _written(each) for each in text)


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode()


class PipesvcError(Exception):
    """An error with its place and the way out: `str(error)` is one line, `error.details` has the remote traceback."""

    def __init__(self, code: ErrorCode, message: str, *, advice: str = "", where: Where | None = None) -> None:
        text = printable(message)
        if len(text) > MAX_MESSAGE_CHARS:
            text = f"{text[:MAX_MESSAGE_CHARS]}... ({len(text) - MAX_MESSAGE_CHARS} characters more)"
        self.details = ErrorDetails(code=code, message=text, advice=advice, where=where or Where())
        super().__init__(str(self.details))

    @classmethod
    def of(cls, details: ErrorDetails) -> PipesvcError:
        """The exception for details that came from elsewhere."""
        error = cls(details.code, details.message)
        error.details = details
        error.args = (str(details),)
        if details.traceback:
            error.add_note(f"Remote traceback:\n{details.traceback.rstrip()}")
        if details.last_words:
            error.add_note(f"Last words of the process:\n{details.last_words.rstrip()}")
        return error

    @property
    def code(self) -> ErrorCode:
        return self.details.code

    @property
    def exit_code(self) -> int:
        return CATALOGUE[self.details.code][1]

    def at(self, where: Where) -> PipesvcError:
        """The same error with its place filled in where it was unknown."""
        known = self.details.where
        merged = Where(
            run_id=known.run_id or where.run_id,
            step=where.step if known.step is None else known.step,
            stage=where.stage if known.stage is None else known.stage,
            micro_batch=where.micro_batch if known.micro_batch is None else known.micro_batch,
            worker=known.worker or where.worker,
            host=known.host or where.host,
        )
        return PipesvcError.of(replace(self.details, where=merged))


class LayersError(PipesvcError):
    """INVALID_PLAN for the names, the number or the bytes of layers: what was asked may fit another model.

    A class of its own for whoever holds layers that were looked at earlier, and may say so. It does not travel.
    """
