"""What store and journal make of a disk that takes nothing for a while."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipesvc.coordinator.admission import admit
from pipesvc.coordinator.hub import Hub
from pipesvc.coordinator.journal import Journal
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.message_file import MessageFile, read_messages
from pipesvc.coordinator.store import Store
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, run_pb2
from tests.unit.coordinator.coordinator_world import make_job


class FailingFile:
    """A file on a disk that has this many bytes left, and one that cannot be closed."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.free_bytes = 0
        self.can_truncate = True

    def write(self, data: memoryview) -> int:
        if not self.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_written: int = self._file.write(data[: self.free_bytes])
        self.free_bytes -= num_written
        return num_written

    def truncate(self, num_bytes: int) -> None:
        if not self.can_truncate:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file.truncate(num_bytes)

    def close(self) -> None:
        self._file.close()
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def failing(file: MessageFile) -> FailingFile:
    disk = FailingFile(file._file)
    file._file = disk  # type: ignore[assignment]
    return disk


@pytest.mark.parametrize("can_truncate", [True, False])
def test_what_was_not_written_whole_is_taken_back(tmp_path: Path, can_truncate: bool) -> None:
    path = tmp_path / "log"
    file = MessageFile(path, 1000)
    file.append([b"before"])
    disk = failing(file)
    disk.free_bytes, disk.can_truncate = 7, can_truncate
    with pytest.raises(OSError, match="No space left"):
        file.append([b"torn", b"lost"])
    disk.free_bytes, disk.can_truncate = 1000, True
    file.append([b"after"])
    assert read_messages(path, 0)[0] == [b"before", b"after"]
    with pytest.raises(OSError, match="Input/output error"):
        file.close()


def test_the_end_of_a_run_is_told_before_its_files_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(Machine(term=1), Journal(tmp_path / "journal.sqlite3"), Store(tmp_path))

    def broken(_run_id: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hub.store, "end_run", broken)
    with hub.feed.watching("r") as woken:
        with pytest.raises(OSError, match="Input/output error"):
            hub._publish(run_pb2.Run(run_id="r", state=run_pb2.RUN_STATE_FAILED))
        assert woken.is_set()


def test_lines_that_the_disk_does_not_take_are_counted_and_said_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    line, event = run_pb2.ReadLogsResponse(line="x"), local_pb2.TraceEvent(step=1)
    assert store.add_log_lines("r", [line]) == ""
    assert store.add_trace("r", [event]) == ""
    disks = [failing(file) for file in store._open.values()]
    said = [store.add_log_lines("r", [line, line]) for _ in range(3)]
    assert "the log cannot be written (No space left on device)" in said[0]
    assert said[1:] == ["", ""]
    assert "the trace cannot be written" in store.add_trace("r", [event])
    assert store.dropped_text("r") == "6 lines of the log and 1 events of the trace"
    for disk in disks:
        disk.free_bytes = 1000
    store.add_log_lines("r", [line])
    assert len(read_messages(store.log_path("r"), 0)[0]) == 2
    store.end_run("r")
    assert store.dropped_text("r") == ""


def test_a_log_that_cannot_even_be_made_is_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert "cannot be written" in store.add_log_lines("gone", [run_pb2.ReadLogsResponse(line="x")])
    store.end_run("gone")
    store.close()


async def set_max_pages(journal: Journal, num_pages: int) -> None:
    """SQLite's own way to have a full disk; never below what the file has."""
    await journal._ask(lambda connection: connection.execute(f"PRAGMA max_page_count = {num_pages}").fetchone())


def large_step(step: int) -> run_pb2.StepRecord:
    return run_pb2.StepRecord(step=step, loss=0.5)


def test_a_journal_goes_on_when_there_is_space_again_and_nothing_is_missing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite3")
    journal.open()

    async def live() -> list[int]:
        await journal.add_run(run_pb2.Run(run_id="r"), make_job())
        await set_max_pages(journal, 1)
        for step in range(1, 2000):
            journal.add_step("r", large_step(step))
        for _ in range(2):
            with pytest.raises(PipesvcError, match="full") as caught:
                await journal.flush()
            assert "Free space" in caught.value.details.advice
        assert await journal.steps("r", 1, 10) == []
        await set_max_pages(journal, 1 << 30)
        await journal.flush()
        return [record.step for record in await journal.steps("r", 1, 5000)]

    steps = asyncio.run(live())
    journal.close()
    assert steps == list(range(1, 2000))


def test_a_write_that_never_succeeds_holds_up_no_other_and_is_named_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite3")
    journal.open()

    async def live() -> list[run_pb2.StepRecord]:
        await journal._ask(lambda connection: connection.execute("DROP TABLE plans"))
        journal.add_plan("r", "digest", "{}", 1)
        journal.add_step("r", large_step(1))
        with pytest.raises(PipesvcError, match="no such table: plans"):
            await journal.flush()
        await journal.flush()
        return await journal.steps("r", 1, 10)

    assert len(asyncio.run(live())) == 1
    journal.close()


def test_a_run_that_cannot_be_journalled_is_refused_whole(tmp_path: Path) -> None:
    store, journal = Store(tmp_path), Journal(tmp_path / "journal.sqlite3")
    journal.open()
    job = make_job()
    job.bundle_sha256 = "f" * 64

    async def live() -> None:
        await set_max_pages(journal, 1)

        async def admit_many() -> None:
            for number in range(10_000):
                await admit(journal, store, run_pb2.Run(run_id=f"r{number}"), job, bytes(100))

        with pytest.raises(PipesvcError, match="the run is refused") as caught:
            await admit_many()
        assert caught.value.code == ErrorCode.INTERNAL
        refused = caught.value.details.where.run_id
        assert not (tmp_path / "runs" / refused).exists()
        await set_max_pages(journal, 1 << 30)
        rows = await journal._ask(lambda connection: connection.execute("SELECT run_id FROM runs").fetchall())
        assert (refused,) not in rows
        await admit(journal, store, run_pb2.Run(run_id=refused), job, bytes(100))

    asyncio.run(live())
    journal.close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone()[0] >= 1


def test_a_bundle_that_cannot_be_stored_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, journal = Store(tmp_path), Journal(tmp_path / "journal.sqlite3")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    job = make_job()
    job.bundle_sha256 = "f" * 64
    with pytest.raises(PipesvcError, match="No space left on device"):
        asyncio.run(admit(journal, store, run_pb2.Run(run_id="r"), job, b"zip"))
    assert not list((tmp_path / "bundles").iterdir())
    assert not list((tmp_path / "runs").iterdir())
