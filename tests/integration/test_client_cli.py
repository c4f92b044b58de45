"""The command line against a RunService that tells what the test wrote down: output, exit codes, one line per error."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipesvc.rpc.v1 import run_pb2, types_pb2
from tests.integration.client_fake import PLAN, FakeRuns, run_event, serving, step_event

Command = Callable[..., subprocess.CompletedProcess[str]]

_JOB = """
import torch
import pipesvc

def build():
    return torch.nn.Sequential(torch.nn.Linear(2, 2))

def reader():
    yield torch.zeros(2), torch.zeros(2)

job = pipesvc.Job(
    model=build, loss=torch.nn.functional.mse_loss, optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
    data=pipesvc.DataSource(reader, batch_size=4),
)
"""


@pytest.fixture
def fake() -> FakeRuns:
    return FakeRuns()


@pytest.fixture
def command(fake: FakeRuns, tmp_path: Path) -> Iterator[Command]:
    with serving(fake) as address:
        environment = os.environ | {
            "PIPESVC_COORDINATOR": address,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "COLUMNS": "200",
        }

        def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "pipesvc", *arguments],
                cwd=tmp_path,
                env=environment | changes,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        yield run


def _one_line(done: subprocess.CompletedProcess[str], exit_code: int) -> str:
    assert done.returncode == exit_code, done.stderr
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("pipesvc: ")
    return line


def test_watch_prints_plain_lines_when_it_is_no_terminal(fake: FakeRuns, command: Command) -> None:
    fake.watches = [[run_event("RUNNING", num_steps=2), step_event(1), step_event(2), run_event("COMPLETED")]]
    done = command("watch", "r")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "r: RUNNING"
    assert "step 2/2, loss 0.5000, 4.0 rows/s" in lines[-2]
    assert lines[-1] == "r: COMPLETED"


def test_a_failed_run_is_one_line_with_its_exit_code_and_logs_have_the_traceback(
    fake: FakeRuns, command: Command
) -> None:
    error = types_pb2.ErrorReport(
        code="STAGE_FAILED", message="ValueError: boom", traceback="File user.py\nValueError: boom", run_id="r", stage=1
    )
    fake.watches = [[run_event("FAILED", error=error)]]
    done = command("watch", "r")
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "r: FAILED",
        "pipesvc: STAGE_FAILED: ValueError: boom (run r, stage 1) (traceback: pipesvc logs r)",
    ]
    fake.run = run_pb2.Run(run_id="r", state=run_pb2.RUN_STATE_FAILED, error=error)
    done = command("logs", "r")
    assert "[w feeder] hello" in done.stderr
    assert "File user.py" in done.stderr
    assert "STAGE_FAILED: ValueError: boom" in command("runs").stdout


def test_a_cancelled_run_has_its_own_exit_code(fake: FakeRuns, command: Command) -> None:
    fake.watches = [[run_event("CANCELLED")]]
    assert command("watch", "r").returncode == 10


def test_f18_an_absent_coordinator_is_one_line(command: Command) -> None:
    line = _one_line(command("status", PIPESVC_COORDINATOR="127.0.0.1:1"), 8)
    assert "COORDINATOR_ABSENT" in line
    assert "127.0.0.1:1" in line


def test_a_malformed_address_and_an_unknown_run_are_one_line(command: Command) -> None:
    assert "HOST:PORT" in _one_line(command("status", "--coordinator", "nowhere"), 2)
    assert "RUN_NOT_FOUND" in _one_line(command("watch", "other"), 2)


def test_submit_sends_the_job_of_a_file_and_follows_it(fake: FakeRuns, command: Command, tmp_path: Path) -> None:
    (tmp_path / "cli_job.py").write_text(_JOB)
    warning = "with one micro-batch nothing overlaps"
    planned = run_event("BUILDING", plan_json=PLAN.to_json(), warnings=[warning])
    fake.watches = [[planned, "hold"], [run_event("RUNNING"), step_event(1), run_event("COMPLETED")]]
    done = command("submit", "cli_job.py:job", "--run-id", "r")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "r\n"
    assert done.stderr.splitlines()[0] == f"pipesvc: PipesvcWarning: {warning}"
    [request] = fake.submits
    assert request.job.model.target == "cli_job:build"
    assert len(request.bundle) > 0


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("job = 1", "bad.py:job", "bad.py:job is a int"),
        ("job = 1", "bad.py:other", "has no 'other'"),
        ("job = 1", "bad.py", "Write PATH:NAME"),
        ("job = 1", "missing.py:job", "there is no file"),
        ("import a_package_that_nobody_has", "bad.py:job", r"bad\.py:1: ModuleNotFoundError"),
    ],
)
def test_a_bad_file_is_one_line(command: Command, tmp_path: Path, text: str, place: str, words: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    done = command("submit", place)
    assert done.returncode in (2, 4)
    assert re.search(words, _one_line(done, done.returncode))


def test_trace_weights_cancel_and_status(fake: FakeRuns, command: Command, tmp_path: Path) -> None:
    trace = json.loads(command("trace", "r").stdout)
    assert [event["action"] for event in trace] == ["F", "F", "F"]
    assert command("trace", "r", "--out", "t.json").returncode == 0
    assert json.loads((tmp_path / "t.json").read_text()) == trace
    assert command("weights", "r").stdout == "r.safetensors: the weights after step 7\n"
    assert (tmp_path / "r.safetensors").read_bytes() == fake.weights
    assert "no workers" in command("status").stdout
    fake.run.times["w"].computing_ns = 1
    assert command("status", "r").stdout.splitlines()[-1].startswith("worker w is busy 100%, no input 0%")
    assert command("cancel", "r").stdout == "r: CANCELLED\n"


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("nowhere/w", "nowhere/w: No such file or directory. Make its folder first"),
        (".", "Is a directory. It is a folder: name a file in it"),
        ("/dev/full", "/dev/full: No space left on device. Free some space"),
    ],
)
def test_weights_that_cannot_be_written_say_where_and_what_to_do(command: Command, out: str, words: str) -> None:
    assert words in _one_line(command("weights", "r", "--out", out), 1)


def test_a_name_for_a_worker_is_not_echoed_whole(command: Command) -> None:
    assert len(_one_line(command("worker", "--name", "x" * 5000), 2)) < 200


def test_health_is_one_line_and_exits_with_0_or_1(fake: FakeRuns, command: Command) -> None:
    fake.worker_names = ["box"]
    for arguments in ((), ("--worker", "box")):
        done = command("health", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(r"healthy: the coordinator at 127\.0\.0\.1:\d+ has 1 worker\n", done.stdout)
    assert "has no worker other" in _one_line(command("health", "--worker", "other"), 1)


def test_health_without_a_coordinator_or_its_token_exits_with_1(command: Command, tmp_path: Path) -> None:
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert address in _one_line(command("health", "--coordinator", address), 1)
    assert "cannot be read" in _one_line(command("health", "--token-file", str(tmp_path / "none")), 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--json", "--gantt"], "--json prints JSON alone, not with --gantt"),
        (["--compare", "r", "--gantt"], "--compare prints a comparison alone, not with --gantt"),
        (["--compare", "r", "--out", "a", "--svg", "b"], "alone, not with --out, --svg"),
        (["--compare", ""], "the run id is ''"),
        (["--out", "nowhere/plan.json"], "nowhere/plan.json cannot be written: there is no directory nowhere"),
        (["--svg", "."], "the file . cannot be written: it is a directory"),
        (["--svg", "x", "--out", "./x"], "--out and --svg are the same file, x"),
        (["--svg", "p.json", "--plan", "p.json"], "--plan and --svg are the same file, p.json"),
        (["--plan", "none.json"], "the plan file none.json cannot be read: No such file"),
    ],
)
def test_options_of_plan_that_cannot_be_met_are_refused_before_anything_is_measured(
    fake: FakeRuns, command: Command, tmp_path: Path, options: list[str], text: str
) -> None:
    (tmp_path / "train.py").write_text(_JOB)
    assert text in _one_line(command("plan", "train.py:job", *options), 2)


def test_a_trace_that_cannot_be_written_is_not_fetched(command: Command) -> None:
    assert "no directory nowhere" in _one_line(command("trace", "r", "--out", "nowhere/trace.json"), 2)


_SHOWN = ("coordinator", "worker", "submit", "plan", "verify", "watch")


def test_the_commands_and_their_options_are_these(command: Command) -> None:
    """A change of the command line is made on purpose."""
    help_of = {name: command(name, "--help").stdout for name in _SHOWN}
    options = {name: set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help"} for name, text in help_of.items()}
    assert options == {
        "coordinator": {"--listen", "--state-dir", "--insecure"},
        "worker": {
            "--coordinator",
            "--name",
            "--device",
            "--listen",
            "--advertise",
            "--threads",
            "--memory",
            "--token-file",
            "--insecure",
            "--coordinator-wait",
            "--no-checksum",
        },
        "submit": {"--run-id", "--plan", "--resume", "--coordinator", "--token-file"},
        "plan": {"--json", "--out", "--gantt", "--svg", "--plan", "--compare", "--coordinator", "--token-file"},
        "verify": {"--steps", "--coordinator", "--token-file"},
        "watch": {"--coordinator", "--token-file"},
    }
    listed = command("--help").stdout
    for name in (
        "coordinator",
        "worker",
        "submit",
        "runs",
        "status",
        "watch",
        "logs",
        "trace",
        "weights",
        "checkpoint",
        "cancel",
        "health",
    ):
        assert name in listed
