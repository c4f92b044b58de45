"""`pipesvc worker --no-checksum`, from the command line to the links of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipesvc.cli import app
from pipesvc.net.link_service import LinkService
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from pipesvc.worker import agent, worker_run
from pipesvc.worker.settings import WorkerSettings


@pytest.mark.parametrize(("options", "has_checksums"), [([], True), (["--no-checksum"], False)])
def test_the_option_reaches_the_exchange(
    options: list[str], has_checksums: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[WorkerSettings] = []
    monkeypatch.setattr(agent, "main", given.append)
    assert CliRunner().invoke(app, ["worker", *options]).exit_code == 0
    (settings,) = given
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(agent, "NurseryClient", lambda say: None)
    monkeypatch.setattr(agent, "Door", lambda: None)
    monkeypatch.setattr(worker_run, "Exchange", lambda **values: made.append(values))
    worker = agent.Agent(settings, LinkService(), tmp_path)
    assignment = local_pb2.Assignment(run_id="r", term=1, role=types_pb2.ROLE_EXECUTOR, worker="w", host="h")
    monkeypatch.setattr(worker_run.WorkerRun, "start", lambda *_: None)
    worker.command(worker_pb2.AttachResponse(start_child=worker_pb2.StartChild(assignment=assignment)))
    assert [values["has_checksums"] for values in made] == [has_checksums]
