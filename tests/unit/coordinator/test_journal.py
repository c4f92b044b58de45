"""What comes back from the disk after the coordinator was killed."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipesvc.coordinator.journal import Journal
from pipesvc.coordinator.recovery import sort_out
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import run_pb2
from tests.unit.coordinator.coordinator_world import make_job


def make_run(run_id: str, state: run_pb2.RunState = run_pb2.RUN_STATE_QUEUED) -> run_pb2.Run:
    return run_pb2.Run(run_id=run_id, state=state, submitted_unix_ns=5, warnings=["careful"])


def make_step(step: int, loss: float = 0.5) -> run_pb2.StepRecord:
    return run_pb2.StepRecord(step=step, epoch=1, loss=loss, num_rows=8, committed_unix_ns=step)


def test_what_was_written_is_there_for_the_next_coordinator_under_a_higher_term(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    journal = Journal(path)
    assert journal.open() == (1, [])
    asyncio.run(journal.add_run(make_run("first"), make_job()))
    asyncio.run(journal.add_run(make_run("second"), make_job(seed=1)))
    asyncio.run(journal.add_run(make_run("first"), make_job(seed=2)))
    journal.update_run(make_run("first", run_pb2.RUN_STATE_RUNNING))
    journal.add_plan("first", "digest", "{}", 6)
    for step in (1, 2):
        journal.add_step("first", make_step(step))
        journal.add_applied("first", 0, step)
    journal.add_applied("first", 1, 2)
    asyncio.run(journal.flush())
    # The first journal is not closed: its coordinator was killed.
    second = Journal(path)
    term, stored = second.open()
    assert term == 2
    assert [item.run.run_id for item in stored] == ["first", "second"]
    assert stored[0].run.state == run_pb2.RUN_STATE_RUNNING
    assert stored[0].run.num_committed_steps == 2
    assert stored[0].run.stage_steps == [2, 2]
    assert stored[0].job == make_job()
    second.close()
    journal.close()
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT state, plan_digest, warnings FROM runs ORDER BY position").fetchall()
    assert rows == [("RUN_STATE_RUNNING", "digest", '["careful"]'), ("RUN_STATE_QUEUED", "", '["careful"]')]


def test_reads_see_what_was_written_before_them_and_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite3")
    journal.open()

    async def write_and_read() -> tuple[list[run_pb2.StepRecord], list[run_pb2.StepRecord]]:
        for step in range(1, 6):
            journal.add_step("r", make_step(step, math.nan if step == 5 else step))
        return await journal.steps("r", 2, 2), await journal.steps("r", 5, 100)

    middle, end = asyncio.run(write_and_read())
    journal.close()
    assert [(record.step, record.loss) for record in middle] == [(2, 2.0), (3, 3.0)]
    assert [record.step for record in end] == [5]
    assert math.isnan(end[0].loss)


def test_a_write_that_fails_is_named_by_the_next_flush(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    journal = Journal(path)
    journal.open()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE steps")
        connection.commit()
    journal.add_step("r", make_step(1))
    with pytest.raises(PipesvcError, match="no such table: steps"):
        asyncio.run(journal.flush())
    journal.close()


def test_a_journal_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    path.write_text("this is no database, and long enough to be read as one" * 10)
    with pytest.raises(PipesvcError, match="cannot be opened") as caught:
        Journal(path).open()
    assert caught.value.code == ErrorCode.INTERNAL


def test_live_runs_fail_by_name_and_queued_ones_go_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite3")
    journal.open()
    states = {
        "done": run_pb2.RUN_STATE_COMPLETED,
        "live": run_pb2.RUN_STATE_RUNNING,
        "inspected": run_pb2.RUN_STATE_INSPECTING,
        "queued": run_pb2.RUN_STATE_QUEUED,
    }
    for run_id, state in states.items():
        asyncio.run(journal.add_run(make_run(run_id, state), make_job()))
    journal.add_step("live", make_step(1))
    journal.close()
    again = Journal(tmp_path / "journal.sqlite3")
    _, stored = again.open()
    again.close()
    inheritance = sort_out(stored, now_unix_ns=9)
    assert [item.run.run_id for item in inheritance.ended] == ["done", "live"]
    assert [item.run.run_id for item in inheritance.queued] == ["inspected", "queued"]
    (live,) = inheritance.interrupted
    assert live.run.state == run_pb2.RUN_STATE_FAILED
    assert live.run.error.code == "COORDINATOR_RESTARTED"
    assert "after step 1" in live.run.error.message
    assert live.run.ended_unix_ns == 9
