"""Parts of an agent beside its processes: settings, identity, printed lines, outbox, lifeline, directory."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pipesvc import lifeline
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import worker_pb2
from pipesvc.worker import identity, session, work_dir
from pipesvc.worker.output_lines import MAX_LINE_CHARS, OutputLines
from pipesvc.worker.session import Outbox
from pipesvc.worker.settings import WorkerSettings


def test_the_agent_imports_no_torch() -> None:
    code = "import sys, pipesvc.worker.agent; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("coordinator", "nowhere"),
        ("listen", "127.0.0.1"),
        ("advertise", "host:0"),
        ("advertise", "0.0.0.0:7000"),
        ("name", ""),
        ("name", "a/b"),
        ("num_threads", -1),
        ("memory", "lots"),
        ("memory", "-1GiB"),
        ("memory", "0"),
        ("memory", "8 PiB"),
        ("memory", "999999999TiB"),
        ("memory", "9" * 400),
        ("memory", "0.5"),
        ("coordinator_wait_s", float("nan")),
    ],
)
def test_settings_are_checked_at_birth(name: str, value: object) -> None:
    good: dict[str, object] = {"coordinator": "127.0.0.1:7700", "name": "a"}
    WorkerSettings(**good)  # type: ignore[arg-type]
    with pytest.raises(PipesvcError) as caught:
        WorkerSettings(**{**good, name: value})  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_JOB


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("", 0),
        ("1000", 1000),
        ("512MiB", 512 << 20),
        ("8GiB", 8 << 30),
        ("8g", 8 << 30),
        ("1.5K", 1536),
        ("2T", 2 << 40),
    ],
)
def test_memory_is_said_in_bytes_or_with_a_unit(text: str, num_bytes: int) -> None:
    settings = WorkerSettings(coordinator="127.0.0.1:7700", name="a", memory=text)
    assert settings.memory_limit_bytes == num_bytes


def test_devices_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "num_cuda_devices", lambda: 2)
    assert identity.parse_devices("cpu, cuda:1,cpu") == ("cpu", "cuda:1")
    with pytest.raises(PipesvcError, match="this host has cpu, cuda:0, cuda:1 only") as caught:
        identity.parse_devices("cuda:2")
    assert caught.value.code is ErrorCode.UNKNOWN_DEVICE


@pytest.mark.parametrize("text", ["", "cpu:0", "gpu:0", "cuda", "cuda:01", "cuda:-1", "tpu"])
def test_other_words_are_no_devices(text: str) -> None:
    with pytest.raises(PipesvcError, match="names no device"):
        identity.parse_devices(text)


def test_a_host_without_a_driver_has_no_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_CUDA_PROBE", "import ctypes; ctypes.CDLL('libno-such-driver.so')")
    assert identity.num_cuda_devices() == 0


def test_the_identity_has_every_field() -> None:
    assert identity.num_cores() >= 1
    assert identity.memory_bytes() > 1 << 20
    assert len(identity.boot_id()) == 36
    versions = identity.versions()
    assert versions.wire == 1
    assert versions.torch
    assert identity.fingerprint(("cpu",), 0) == identity.fingerprint(("cpu",), 0)
    assert identity.fingerprint(("cpu",), 1) != identity.fingerprint(("cpu",), 2)


class Lines:
    """The reading end of a pipe, and what came out of it."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.batches: list[list[str]] = []
        self.output = OutputLines(reader, self.batches.append)

    @property
    def lines(self) -> list[str]:
        return [line for batch in self.batches for line in batch]


@pytest.mark.asyncio
async def test_lines_come_as_they_are_printed() -> None:
    pipe = Lines()
    os.write(pipe.writer, b"one\ntwo\nthr")
    async with asyncio.timeout(5):
        while len(pipe.lines) < 2:
            await asyncio.sleep(0)
    os.write(pipe.writer, "ee\n\xfc bad \xff".encode("latin-1"))
    os.close(pipe.writer)
    pipe.output.finish()
    assert pipe.lines == ["one", "two", "three", "\ufffd bad \ufffd"]


@pytest.mark.asyncio
async def test_an_endless_line_is_cut_and_a_progress_bar_is_its_last_state() -> None:
    pipe = Lines()
    os.write(pipe.writer, b"x" * (MAX_LINE_CHARS + 1000))
    pipe.output.finish()
    assert [len(line) for line in pipe.lines] == [MAX_LINE_CHARS]
    os.close(pipe.writer)

    bar = Lines()
    os.write(bar.writer, b"10 %\r50 %\r100 %\ndone\r\n")
    bar.output.finish()
    os.close(bar.writer)
    assert bar.lines == ["100 %", "done"]


def _logged(num_bytes: int) -> worker_pb2.AttachRequest:
    return worker_pb2.AttachRequest(log_lines=worker_pb2.LogLines(lines=["x" * num_bytes]))


@pytest.mark.asyncio
async def test_the_outbox_asks_for_a_pause_when_it_grows_and_ends_it_when_it_has_shrunk() -> None:
    signals: list[bool] = []
    outbox = Outbox(signals.append)
    num_messages = session.OUTBOX_HIGH_BYTES // 1_000_000 + 2
    for _ in range(num_messages):
        outbox.put(_logged(1_000_000))
    assert signals == [True]

    while (request := outbox.first()) is not None:
        assert request.log_lines.lines
        outbox.drop_first()

    assert signals == [True, False]
    await outbox.emptied(5.0)


@pytest.mark.asyncio
async def test_waiting_for_the_outbox_ends_with_the_first_message() -> None:
    outbox = Outbox(lambda is_pressed: None)
    waiting = asyncio.create_task(outbox.wait(10.0))
    await asyncio.sleep(0)
    outbox.put(_logged(1))
    await asyncio.wait_for(waiting, 5.0)
    assert outbox.first() is not None


@pytest.mark.asyncio
async def test_the_lifeline_ends_with_its_writer() -> None:
    reader, writer = os.pipe()
    ended = asyncio.Event()
    environ = {lifeline.LIFELINE_VARIABLE: str(reader)}
    stop = lifeline.watch(ended.set, environ)
    assert environ == {}
    await asyncio.sleep(0.01)
    assert not ended.is_set()

    os.close(writer)
    await asyncio.wait_for(ended.wait(), 5.0)

    stop()


@pytest.mark.asyncio
async def test_without_the_variable_nothing_is_watched() -> None:
    stop = lifeline.watch(lambda: pytest.fail("called"), {})
    stop()


def test_directories_of_killed_agents_are_swept_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = time.time() - 3600
    left, used, foreign = (tmp_path / name for name in ("pipesvc-worker-left", "pipesvc-worker-used", "other"))
    for folder in (left, used, foreign):
        folder.mkdir()
        (folder / "file").touch()
        os.utime(folder, (old, old))
    young = tmp_path / "pipesvc-worker-young"
    young.mkdir()
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    with work_dir.fresh() as own:
        assert own.is_dir()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            [used.name, foreign.name, young.name, own.name]
        )

    assert not own.exists()
    os.close(lock)
