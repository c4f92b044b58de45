"""Weights that a job names and the coordinator does not have, or not yet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pipesvc.coordinator.files_desk import FilesDesk
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.store import Store
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2
from pipesvc.wire.weights_name import name_of


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("runs/first.safetensors", "the file 'runs/first.safetensors' is not here"),
        ("", "the file of weights that was sent is not here"),
    ],
)
def test_a_file_that_is_not_here_is_named(tmp_path: Path, path: str, said: str) -> None:
    nobody: Any = None
    desk = FilesDesk(Machine(term=1), Store(tmp_path), nobody, nobody)
    job = job_pb2.JobSpec(weights=job_pb2.WeightsSource(sha256="a" * 64, path=path))
    with pytest.raises(PipesvcError, match=said) as caught:
        asyncio.run(desk.start_of(job))
    assert caught.value.code is ErrorCode.WEIGHTS_NOT_READY


def test_weights_of_a_run_have_its_id() -> None:
    assert name_of(job_pb2.WeightsSource(run_id="mlp-1")) == "the state of run mlp-1"
