"""What goes does not hold up the event loop, and does not take what comes after it along."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipesvc.coordinator import trash
from pipesvc.coordinator.store import Store
from pipesvc.coordinator.trash import Trash
from pipesvc.rpc.v1 import job_pb2, local_pb2

LIMIT_S = 5.0


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Removes nothing before the event is set."""
    may_remove = threading.Event()

    def wait_and(remove: Callable[..., object]) -> Callable[..., None]:
        def removing(path: Path, **options: bool) -> None:
            assert may_remove.wait(LIMIT_S)
            remove(path, **options)

        return removing

    monkeypatch.setattr(shutil, "rmtree", wait_and(shutil.rmtree))
    monkeypatch.setattr(Path, "unlink", wait_and(Path.unlink))
    yield may_remove
    may_remove.set()


def test_states_outputs_and_files_of_a_run_are_gone_at_once_on_a_slow_disk(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    for step in (1, 2):
        store.write_shard("r", local_pb2.StateChunk(step=step, data=b"old"))
        store.add_output("r", local_pb2.OutputPart(step=step))
    with store.sources.begin() as draft:
        store.sources.end(draft, "a" * 64)
    old = time.time() - 7200
    os.utime(tmp_path / "weights" / f"{'a' * 64}.safetensors", (old, old))
    store.add_bundle("b" * 64, b"zip")
    store.drop_weights("r", 1)
    store.drop_output("r", 1)
    store.end_run("r")
    store.sources.keep_only([])
    store.drop_bundle("b" * 64)
    assert not list((tmp_path / "runs" / "r").iterdir())
    job = job_pb2.JobSpec(weights=job_pb2.WeightsSource(sha256="a" * 64))
    assert not store.has_source(job, is_training=False)
    assert store.bundle("b" * 64) == b""
    assert len(list((tmp_path / "trash").iterdir())) == 6
    slow_disk.set()
    assert eventually(lambda: not list((tmp_path / "trash").iterdir()))


def test_a_state_that_comes_anew_is_not_removed_with_the_old_one(tmp_path: Path, slow_disk: threading.Event) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    store.write_shard("r", local_pb2.StateChunk(step=1, data=b"old"))
    store.drop_weights("r", 1)
    store.write_shard("r", local_pb2.StateChunk(step=1, data=b"new"))
    slow_disk.set()
    assert eventually(lambda: not list((tmp_path / "trash").iterdir()))
    assert (tmp_path / "runs/r/state-1/stage-0-weights.safetensors").read_bytes() == b"new"


def test_what_an_earlier_process_left_goes(tmp_path: Path) -> None:
    (tmp_path / "trash" / "left").mkdir(parents=True)
    (tmp_path / "trash" / "left" / "file").write_text("x")
    (tmp_path / "trash" / "other").write_text("x")
    Trash(tmp_path / "trash")
    assert eventually(lambda: not list((tmp_path / "trash").iterdir()))


def test_what_cannot_be_moved_is_removed_where_it_is_and_nothing_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trash.Trash(tmp_path / "trash")
    made.put(tmp_path / "absent")

    def full(_path: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    (tmp_path / "folder").mkdir()
    made.put(tmp_path / "folder")
    assert eventually(lambda: not (tmp_path / "folder").exists())
