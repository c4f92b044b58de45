"""What people see: progress lines, tables, error lines."""

from __future__ import annotations

import errno
import io
import math
import os

import pytest

from pipesvc.cli_errors import error_line, os_error_line
from pipesvc.client.progress import Pace, _Bar, _Lines, duration, step_text
from pipesvc.client.report import run_text, runs_text, status_text, table, traceback_text
from pipesvc.client.times import cause_of
from pipesvc.client.watching import Step, state_name
from pipesvc.errors import ErrorCode, ErrorDetails, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2


def _step(index: int, time: float, loss: float = 1.0) -> Step:
    return Step(index=index, epoch=0, loss=loss, num_rows=8, time=time)


def test_pace_is_rows_over_the_time_between_steps() -> None:
    pace = Pace()
    pace.add(_step(1, 100.0))
    assert pace.rows_per_s is None
    assert pace.left_s(10) is None
    pace.add(_step(2, 100.5))
    pace.add(_step(3, 101.0))
    assert pace.rows_per_s == 16.0
    assert pace.left_s(10) == 3.5
    assert pace.left_s(0) is None
    assert step_text(_step(3, 101.0, 2.5), 10, pace) == "step 3/10, loss 2.5000, 16 rows/s, 4 s left"


def test_lines_are_at_most_one_per_second_and_always_the_last() -> None:
    out, now = io.StringIO(), [0.0]
    lines = _Lines("r", out, clock=lambda: now[0])
    lines.state(run_pb2.Run(state=run_pb2.RUN_STATE_RUNNING, num_steps=5))
    for index in range(1, 6):
        lines.step(_step(index, float(index)))
        now[0] += 0.4
    lines.state(run_pb2.Run(state=run_pb2.RUN_STATE_COMPLETED, num_steps=5))
    lines.close()
    shown = [line.removeprefix("r: ").split(",")[0] for line in out.getvalue().splitlines()]
    assert shown == ["RUNNING", "step 1/5", "step 4/5", "step 5/5", "COMPLETED"]


def test_a_prediction_has_batches_and_no_loss() -> None:
    out, bar_out = io.StringIO(), io.StringIO()
    for view in (_Lines("r", out), _Bar("r", bar_out)):
        view.state(run_pb2.Run(state=run_pb2.RUN_STATE_RUNNING, num_steps=2, is_prediction=True))
        view.step(_step(1, 1.0, math.nan))
        view.close()
    assert out.getvalue().splitlines()[1:] == ["r: batch 1/2"]
    assert "batch 1/2" in bar_out.getvalue()
    assert "nan" not in bar_out.getvalue()


def test_f19_a_waiting_run_says_for_what() -> None:
    out = io.StringIO()
    lines = _Lines("r", out)
    awaited = run_pb2.Awaited(what="2 of 3 workers, waiting for one more", from_whom="")
    lines.state(run_pb2.Run(state=run_pb2.RUN_STATE_WAITING, awaited=[awaited]))
    assert out.getvalue() == "r: WAITING: 2 of 3 workers, waiting for one more\n"


def test_the_bar_shows_step_and_loss() -> None:
    out = io.StringIO()
    bar = _Bar("run-1", out)
    bar.state(run_pb2.Run(state=run_pb2.RUN_STATE_RUNNING, num_steps=4))
    bar.step(_step(2, 1.0, 0.25))
    bar.close()
    assert "run-1" in out.getvalue()
    assert "step 2/4, loss 0.2500" in out.getvalue()


def test_durations() -> None:
    assert [duration(s) for s in (-1, 59.4, 185, 7620)] == ["0 s", "59 s", "3 min 5 s", "2 h 7 min"]


def test_tables_align() -> None:
    assert table(("A", "B"), [("long", "x"), ("y", "")]) == "A     B\nlong  x\ny"


def test_what_others_called_a_run_stays_on_its_line() -> None:
    rows = runs_text([run_pb2.Run(run_id="r1", name="a\nb\x1b[31m\0"), run_pb2.Run(run_id="r2", name="Zürich")])
    assert [line.split("  ")[0] for line in rows.splitlines()] == ["RUN", "r1", "r2"]
    assert r"a\nb\x1b[31m\x00" in rows
    assert "Zürich" in rows


def test_status_names_workers_and_what_is_awaited() -> None:
    status = run_pb2.GetStatusResponse()
    worker = status.workers.add(last_beat_age_s=0.2)
    worker.registration.name, worker.registration.host = "big-memory", "h1"
    worker.registration.devices.extend(["cpu", "cuda:0"])
    worker.registration.num_cores = 8
    run = status.runs.add(run_id="r1", state=run_pb2.RUN_STATE_WAITING)
    run.awaited.add(
        what="2 of 3 workers",
        from_whom="gpu-box",
        since_unix_ns=90_000_000_000,
        until_unix_ns=160_000_000_000,
        then="the run fails with MISSING_WORKER",
    )
    text = status_text(status, now_s=100.0)
    assert "big-memory  h1    cpu,cuda:0  8 of 8, shared  0.2 s ago  idle" in text
    line = "r1: waits for 2 of 3 workers from gpu-box, since 10 s, for 1 min 0 s more"
    assert f"{line}, then the run fails with MISSING_WORKER" in text
    assert status_text(run_pb2.GetStatusResponse()) == "no workers\nno live runs"


def test_status_shows_how_many_threads_torch_has_on_each_worker() -> None:
    """Said, or a share of its machine's cores as a run on all workers would give it."""
    status = run_pb2.GetStatusResponse()
    for name, boot_id, num_threads in (("a", "one", 0), ("b", "one", 0), ("c", "one", 3), ("d", "other", 0)):
        found = status.workers.add().registration
        found.name, found.boot_id, found.num_threads, found.num_cores = name, boot_id, num_threads, 6
    cells = [line.split("  ")[1:] for line in status_text(status, now_s=100.0).splitlines()[1:5]]
    assert [next(cell.strip() for cell in row if cell.strip()) for row in cells] == [
        "2 of 6, shared",
        "2 of 6, shared",
        "3",
        "6 of 6, shared",
    ]


def test_status_warns_of_workers_that_cannot_reach_each_other() -> None:
    status = run_pb2.GetStatusResponse()
    for worker in ("a", "b"):
        found = status.unreached.add(worker=worker, peer="b", data_address="h2:7001", problem="no answer")
        found.since_unix_ns, found.num_probes = 90_000_000_000, 3
    text = status_text(status, now_s=100.0)
    assert "WARNING: worker a cannot reach b at h2:7001: no answer (since 10 s, tried 3 times)" in text
    assert "WARNING: worker b cannot reach itself at h2:7001: no answer" in text


def test_status_shows_what_codecs_save_and_cost() -> None:
    run = run_pb2.Run(run_id="r1", state=run_pb2.RUN_STATE_RUNNING)
    for kind, coded_bytes in ((types_pb2.LINK_KIND_ACTIVATION, 1 << 20), (types_pb2.LINK_KIND_INPUT, 4 << 20)):
        link = types_pb2.LinkId(producer=0, consumer=1, kind=kind)
        run.links.add(link=link, tensor_bytes=4 << 20, coded_bytes=coded_bytes, relative_error=0.00461)
    lines = status_text(run_pb2.GetStatusResponse(runs=[run])).splitlines()
    text = "r1: link 0>1/activation has sent 4.0 MiB as 1.0 MiB, with a relative error of 0.0046"
    assert [line for line in lines if "link" in line] == [text]


def test_status_shows_why_workers_are_idle_also_of_a_run_that_has_ended() -> None:
    run = run_pb2.Run(run_id="r1", name="lm", state=run_pb2.RUN_STATE_COMPLETED, num_committed_steps=3)
    run.times["b"].MergeFrom(local_pb2.ExecutorTimes(computing_ns=3 * 10**9, no_input_ns=10**9))
    run.times["a"].MergeFrom(local_pb2.ExecutorTimes(computing_ns=1, no_input_ns=2, no_credit_ns=3, no_core_ns=4))
    run.times["none"].MergeFrom(local_pb2.ExecutorTimes())
    assert run_text(run, now_s=0.0).splitlines()[1:] == [
        "r1   COMPLETED  3      lm",
        "worker a is busy 10%, no input 20%, no credit 30%, no core 40%",
        "worker b is busy 75%, no input 25%, no credit 0%, no core unknown",
    ]
    run.state = run_pb2.RUN_STATE_RUNNING
    assert "r1: worker a is busy 10%" in status_text(run_pb2.GetStatusResponse(runs=[run]))


@pytest.mark.parametrize(
    ("awaited_ns", "credit_ns", "cause"), [(0, 0, ""), (9, 0, "no input"), (9, 4, "no input"), (9, 5, "no credit")]
)
def test_a_wait_has_the_cause_of_most_of_it(awaited_ns: int, credit_ns: int, cause: str) -> None:
    assert cause_of(local_pb2.TraceEvent(awaited_ns=awaited_ns, awaited_credit_ns=credit_ns)) == cause


def test_runs_show_their_error_in_one_line() -> None:
    error = types_pb2.ErrorReport(code="STAGE_FAILED", message="ValueError:\nboom", traceback="Traceback ...\nboom")
    run = run_pb2.Run(run_id="r1", state=run_pb2.RUN_STATE_FAILED, error=error, num_committed_steps=3, num_steps=9)
    assert runs_text([run]).splitlines()[1].split("  ")[0] == "r1"
    assert "3/9" in runs_text([run])
    assert "STAGE_FAILED: ValueError: boom" in runs_text([run])
    assert "Remote traceback:\nTraceback" in traceback_text(run)
    assert traceback_text(run_pb2.Run()) == ""
    assert runs_text([]) == "no runs"


def test_an_error_is_one_line_and_says_where_its_traceback_is() -> None:
    details = ErrorDetails(
        code=ErrorCode.STAGE_FAILED, message="ValueError:\nboom", where=Where(run_id="r1"), traceback="Traceback"
    )
    assert error_line(PipesvcError.of(details)) == (
        "pipesvc: STAGE_FAILED: ValueError: boom (run r1) (traceback: pipesvc logs r1)"
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOENT, "No such file or directory. Make its folder first, or name another place"),
        (errno.EISDIR, "Is a directory. It is a folder: name a file in it"),
        (errno.ENOSPC, "No space left on device. Free some space, or name a place on another disk"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_an_error_of_a_file_says_what_where_and_what_to_do(number: int, words: str) -> None:
    assert os_error_line(OSError(number, os.strerror(number), "a/w\x1b\n")) == rf"pipesvc: a/w\x1b\n: {words}"
    assert os_error_line(OSError(number, "x", b"a/w")).startswith("pipesvc: a/w: x")


def test_an_error_without_a_file_stays_as_it_is() -> None:
    assert os_error_line(OSError("no file")) == "pipesvc: no file"


def test_a_state_of_a_newer_version_stays_a_number() -> None:
    assert state_name(run_pb2.RUN_STATE_SAVING) == "SAVING"
    assert state_name(99) == "state 99"
