"""The journal's writes that are not committed yet, kept for as long as the disk takes none.

A disk is full for a while and then it is not. Steps that were applied meanwhile should be in the journal all the same,
so nothing is let go because of the disk, and the journal is whole as soon as there is space.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# How soon writing is tried again when nobody asks.
RETRY_S: Final = 1.0
ADVICE: Final = "Free space in the coordinator's state directory, or make it writable"
# A disk that is full for days is a failure and not a reason to take all memory.
_MAX_WRITES: Final = 200_000
# Errors of the place and not of the statement: they pass, and the same statement may then succeed.
_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)


@dataclass(frozen=True, slots=True)
class Write:
    """One statement that writes."""

    sql: str
    values: tuple[object, ...]


class Backlog:
    """For the journal's thread; `lost` may be set by others."""

    def __init__(self, path: Path) -> None:
        self.writes: Final[list[Write]] = []
        self.problem = ""
        """Why nothing can be committed at the moment."""
        self.lost = ""
        """A write that will never be there, and why."""
        self._path = path
        self._retry_s = 0.0

    def add(self, write: Write) -> None:
        if len(self.writes) < _MAX_WRITES:
            self.writes.append(write)
        else:
            self.lost = f"more than {_MAX_WRITES} writes wait for the disk ({self.problem})"

    def take_problem(self) -> str:
        """A disk that takes nothing is a problem for as long as it does; a write that is lost is named once."""
        problem = self.problem or self.lost
        self.lost = ""
        return problem

    def commit_if_due(self, connection: sqlite3.Connection, now_s: float) -> None:
        if self.writes and (not self.problem or now_s >= self._retry_s):
            self.commit(connection)

    def commit(self, connection: sqlite3.Connection) -> None:
        """All of it, or keep all of it; only a statement that can never succeed is let go."""
        if not self.writes:
            return
        try:
            lost = self._execute(connection)
            connection.commit()
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            self._retry_s = time.monotonic() + RETRY_S
            if not self.problem:
                self._say(f"cannot be written and tries again: {error}. {ADVICE}")
            self.problem = str(error)
            return
        if self.problem:
            self._say("can be written again")
        self.writes.clear()
        self.problem, self.lost = "", lost or self.lost

    def _execute(self, connection: sqlite3.Connection) -> str:
        lost = ""
        for write in self.writes:
            try:
                connection.execute(write.sql, write.values)
            except (sqlite3.Error, OverflowError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
                    raise
                lost = str(error)
        return lost

    def _say(self, text: str) -> None:
        print(f"pipesvc coordinator: the journal {self._path} {text}", file=sys.stderr, flush=True)
