"""What the coordinator must still know after it has been killed: jobs, plans, steps, ends.

SQLite forces every commit to the disk, which takes milliseconds that a step does not have. So one thread owns the
database: it takes what has gathered since its last commit and commits that at once. Whoever must be sure waits for
`flush`; reads go through the same queue and therefore see everything that was written before them.

A disk may be full for a while. What could not be committed is kept and tried again, so the journal is whole as soon
as there is space; only a new run waits for nothing: it is on the disk, or refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pipesvc.coordinator.backlog import ADVICE, RETRY_S, Backlog, Write
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2, run_pb2

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS term (id INTEGER PRIMARY KEY CHECK (id = 0), term INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    position INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE, job BLOB NOT NULL,
    bundle_sha256 TEXT NOT NULL, state TEXT NOT NULL, error TEXT NOT NULL, plan_digest TEXT NOT NULL,
    warnings TEXT NOT NULL, submitted_unix_ns INTEGER NOT NULL, ended_unix_ns INTEGER NOT NULL, snapshot BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS plans (
    run_id TEXT NOT NULL, digest TEXT NOT NULL, plan TEXT NOT NULL, made_unix_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
    run_id TEXT NOT NULL, step INTEGER NOT NULL, epoch INTEGER NOT NULL, loss REAL, num_rows INTEGER NOT NULL,
    committed_unix_ns INTEGER NOT NULL, PRIMARY KEY (run_id, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evaluations (
    run_id TEXT NOT NULL, step INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (run_id, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS applied (
    run_id TEXT NOT NULL, stage INTEGER NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (run_id, stage)) WITHOUT ROWID;
"""

# Work waiting for the thread. A disk that falls this far behind is a failure and not a reason to take all memory.
_MAX_PENDING: Final = 100_000
_CLOSE_BOUND_S: Final = 5.0

_Question = Callable[[sqlite3.Connection], None]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A run as the journal knows it."""

    run: run_pb2.Run
    job: job_pb2.JobSpec


class Journal:
    """All methods are for the event loop's thread and return at once, unless they are awaited."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._work: queue.Queue[Write | _Question | None] = queue.Queue(maxsize=_MAX_PENDING)
        self._backlog = Backlog(path)
        self._thread: threading.Thread | None = None

    def open(self) -> tuple[int, list[StoredRun]]:
        """Raise the term, and read what earlier coordinators left: the new term and all runs in order of submission."""
        try:
            connection = self._connect()
            try:
                connection.executescript(_SCHEMA)
                with connection:
                    connection.execute("INSERT INTO term VALUES (0, 1) ON CONFLICT (id) DO UPDATE SET term = term + 1")
                term = connection.execute("SELECT term FROM term").fetchone()[0]
                stored = _stored_runs(connection)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            message = f"the journal {self._path} cannot be opened: {error}"
            advice = "Free space there or make it writable, or name another --state-dir"
            raise PipesvcError(ErrorCode.INTERNAL, message, advice=advice) from error
        # The thread takes over this connection: one more that it had to open might find the disk full.
        self._thread = threading.Thread(target=self._serve, args=(connection,), name="pipesvc-journal", daemon=True)
        self._thread.start()
        return int(term), stored

    def close(self) -> None:
        """Write what is pending and end, within a bound."""
        if self._thread is not None and self._thread.is_alive():
            try:
                self._work.put(None, timeout=_CLOSE_BOUND_S)
            except queue.Full:
                return
            self._thread.join(_CLOSE_BOUND_S)

    # --- writing ----------------------------------------------------------------------------------------------------

    async def add_run(self, run: run_pb2.Run, job: job_pb2.JobSpec) -> None:
        """On return the run is on the disk. When this raises, it is not and will not come there."""
        values = (run.run_id, job.SerializeToString(deterministic=True), job.bundle_sha256, *_columns(run))
        places = ", ".join("?" * len(values))
        names = "run_id, job, bundle_sha256, state, error, warnings, submitted_unix_ns, ended_unix_ns, snapshot"
        write = Write(f"INSERT OR IGNORE INTO runs ({names}, plan_digest) VALUES ({places}, '')", values)

        def add(connection: sqlite3.Connection) -> None:
            if self._backlog.problem:
                raise sqlite3.OperationalError(self._backlog.problem)
            with connection:
                connection.execute(write.sql, write.values)

        await self._ask(add)

    def update_run(self, run: run_pb2.Run) -> None:
        sql = (
            "UPDATE runs SET state = ?, error = ?, warnings = ?, submitted_unix_ns = ?, ended_unix_ns = ?, snapshot = ?"
            " WHERE run_id = ?"
        )
        self._execute(sql, (*_columns(run), run.run_id))

    def add_plan(self, run_id: str, digest: str, plan_json: str, made_unix_ns: int) -> None:
        self._execute("INSERT INTO plans VALUES (?, ?, ?, ?)", (run_id, digest, plan_json, made_unix_ns))
        self._execute("UPDATE runs SET plan_digest = ? WHERE run_id = ?", (digest, run_id))

    def add_applied(self, run_id: str, stage: int, step: int) -> None:
        sql = "INSERT INTO applied VALUES (?, ?, ?) ON CONFLICT (run_id, stage) DO UPDATE SET step = excluded.step"
        self._execute(sql, (run_id, stage, step))

    def add_step(self, run_id: str, record: run_pb2.StepRecord) -> None:
        # SQLite keeps no NaN: a loss that is one comes back from NULL.
        values = (run_id, record.step, record.epoch, record.loss, record.num_rows, record.committed_unix_ns)
        self._execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?)", values)

    def add_evaluation(self, run_id: str, record: run_pb2.EvaluationRecord) -> None:
        values = (run_id, record.step, record.SerializeToString(deterministic=True))
        self._execute("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?)", values)

    async def flush(self) -> None:
        """Return when everything before is on the disk; raises INTERNAL when it cannot be."""
        await self._ask(self._check)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def steps(self, run_id: str, from_step: int, max_steps: int) -> list[run_pb2.StepRecord]:
        """Committed steps in order, from this one on."""
        sql = (
            "SELECT step, epoch, loss, num_rows, committed_unix_ns FROM steps WHERE run_id = ? AND step >= ?"
            " ORDER BY step LIMIT ?"
        )
        rows = await self._ask(lambda db: db.execute(sql, (run_id, from_step, max_steps)).fetchall())
        return [
            run_pb2.StepRecord(
                step=step,
                epoch=epoch,
                loss=float("nan") if loss is None else loss,
                num_rows=num_rows,
                committed_unix_ns=committed_unix_ns,
            )
            for step, epoch, loss, num_rows, committed_unix_ns in rows
        ]

    async def evaluations(self, run_id: str, from_step: int, max_records: int) -> list[run_pb2.EvaluationRecord]:
        """In order, those of the weights after this step or a later one."""
        sql = "SELECT record FROM evaluations WHERE run_id = ? AND step >= ? ORDER BY step LIMIT ?"
        rows = await self._ask(lambda db: db.execute(sql, (run_id, from_step, max_records)).fetchall())
        return [run_pb2.EvaluationRecord.FromString(record) for (record,) in rows]

    # --- the thread -------------------------------------------------------------------------------------------------

    def _execute(self, sql: str, values: tuple[object, ...]) -> None:
        try:
            self._work.put_nowait(Write(sql, values))
        except queue.Full:
            self._backlog.lost = f"more than {_MAX_PENDING} writes are pending: the disk is too slow"

    def _check(self, _connection: sqlite3.Connection) -> None:
        if problem := self._backlog.take_problem():
            raise sqlite3.OperationalError(problem)

    async def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """The answer, once everything put before it is committed."""
        future: Future[T] = Future()

        def work(connection: sqlite3.Connection) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question(connection))
            except (sqlite3.Error, OverflowError) as error:
                message = f"the journal {self._path}: {error}"
                future.set_exception(
                    PipesvcError(ErrorCode.INTERNAL, message, advice=ADVICE if self._backlog.problem else "")
                )
            except Exception as error:
                future.set_exception(error)

        try:
            self._work.put_nowait(work)
        except queue.Full:
            raise PipesvcError(ErrorCode.INTERNAL, f"the journal {self._path} is too slow: its queue is full") from None
        return await asyncio.wrap_future(future)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _serve(self, connection: sqlite3.Connection) -> None:
        try:
            is_open = True
            while is_open:
                try:
                    work: list[Write | _Question | None] = [
                        self._work.get(timeout=RETRY_S if self._backlog.writes else None)
                    ]
                except queue.Empty:
                    work = []
                with contextlib.suppress(queue.Empty):
                    while len(work) < _MAX_PENDING:
                        work.append(self._work.get_nowait())
                is_open = self._serve_batch(connection, work)
        finally:
            connection.close()

    def _serve_batch(self, connection: sqlite3.Connection, batch: list[Write | _Question | None]) -> bool:
        """Do what has gathered, then commit once. False: that was the last."""
        for work in batch:
            if isinstance(work, Write):
                self._backlog.add(work)
                continue
            # Whoever asks wants what came before to be written, and so it is tried at once.
            self._backlog.commit(connection)
            if work is None:
                return False
            work(connection)
        self._backlog.commit_if_due(connection, time.monotonic())
        return True


def _stored_runs(connection: sqlite3.Connection) -> list[StoredRun]:
    """All runs in order of submission. Steps are counted anew: a snapshot is as old as the last change of state."""
    stored = []
    rows = connection.execute("SELECT run_id, snapshot, job FROM runs ORDER BY position").fetchall()
    for run_id, snapshot, job in rows:
        run = run_pb2.Run.FromString(snapshot)
        steps = connection.execute("SELECT coalesce(max(step), 0) FROM steps WHERE run_id = ?", (run_id,)).fetchone()
        run.num_committed_steps = steps[0]
        last = connection.execute(
            "SELECT coalesce(max(step), 0) FROM evaluations WHERE run_id = ?", (run_id,)
        ).fetchone()
        run.evaluated_step = last[0]
        applied = connection.execute("SELECT step FROM applied WHERE run_id = ? ORDER BY stage", (run_id,))
        run.stage_steps[:] = [step for (step,) in applied]
        stored.append(StoredRun(run=run, job=job_pb2.JobSpec.FromString(job)))
    return stored


def _columns(run: run_pb2.Run) -> tuple[object, ...]:
    error = f"{run.error.code}: {run.error.message}" if run.HasField("error") else ""
    return (
        run_pb2.RunState.Name(run.state),
        error,
        json.dumps(list(run.warnings)),
        run.submitted_unix_ns,
        run.ended_unix_ns,
        run.SerializeToString(),
    )
