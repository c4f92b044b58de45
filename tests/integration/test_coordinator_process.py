"""The coordinator as a process: its first line, its files, and the ways in which it ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipesvc.net.tokens import HOME_VARIABLE


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


@contextmanager
def process(state_dir: Path, listen: str, lifeline: int | None = None) -> Iterator[subprocess.Popen[str]]:
    program = (
        "import sys; from pathlib import Path; from pipesvc.coordinator.app import main;"
        "from pipesvc.coordinator.settings import CoordinatorSettings;"
        f"sys.exit(main(CoordinatorSettings(listen={listen!r}, state_dir=Path({str(state_dir)!r}))))"
    )
    env = dict(os.environ)
    pass_fds: tuple[int, ...] = ()
    if lifeline is not None:
        env["PIPESVC_LIFELINE_FD"], pass_fds = str(lifeline), (lifeline,)
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        pass_fds=pass_fds,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def first_line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    state_dir = tmp_path / "state"
    with process(state_dir, "127.0.0.1:0") as started:
        line = first_line(started)
        assert line.startswith("pipesvc coordinator listening on 127.0.0.1:")
        assert f"(state in {state_dir}, token in {state_dir / 'token'})" in line
        assert stat.S_IMODE((state_dir / "token").stat().st_mode) == 0o600
        pointers = list((tmp_path / "home/tokens").iterdir())
        assert {pointer.read_text().strip() for pointer in pointers} == {str(state_dir / "token")}
        started.send_signal(number)
        assert started.wait(10) == 0
        assert not list((tmp_path / "home/tokens").iterdir())


def test_w03_a_taken_port_and_a_taken_state_directory_are_named(tmp_path: Path) -> None:
    with process(tmp_path / "one", "127.0.0.1:0") as first:
        address = first_line(first).split()[4]
        for state_dir, listen, said in (
            (tmp_path / "two", address, "another process has this port"),
            (tmp_path / "one", "127.0.0.1:0", "another coordinator works in the state directory"),
        ):
            with process(state_dir, listen) as second:
                _, errors = second.communicate(timeout=20)
                assert second.returncode == 7
                assert said in errors
                assert "Traceback" not in errors


def test_a_coordinator_ends_with_its_starter(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        with process(tmp_path / "state", "127.0.0.1:0", lifeline=read) as started:
            first_line(started)
            os.close(write)
            assert started.wait(5) == 1
    finally:
        os.close(read)


@pytest.mark.parametrize("kind", ["a file", "below a file", "in /proc"])
def test_a_state_directory_that_cannot_be_one_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    places = {"a file": tmp_path / "file", "below a file": tmp_path / "file/state", "in /proc": Path("/proc/state")}
    with process(places[kind], "127.0.0.1:0") as started:
        _, errors = started.communicate(timeout=20)
    assert started.returncode == 1
    (line,) = errors.splitlines()
    assert f"the state directory {places[kind]} cannot be used: " in line
    assert "Name another --state-dir" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_of_someone_else_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o500)
    with process(tmp_path / "state", "127.0.0.1:0") as started:
        _, errors = started.communicate(timeout=20)
    assert started.returncode == 1
    assert "cannot be used: Permission denied" in errors
    assert "Traceback" not in errors
