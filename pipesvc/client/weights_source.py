"""Weights that a job begins with, or a checkpoint that it goes on from: those of a run, or files of the user.

A file goes to the coordinator in pieces, under its hash, so that a job that is submitted again sends nothing and is the
same job. From there each worker reads the ranges that it needs: no path has to mean the same on two hosts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from pipesvc.client.checks import refusal, refuse, shown
from pipesvc.errors import printable
from pipesvc.rpc.v1 import job_pb2, run_pb2
from pipesvc.wire.training_file import TRAINING_FILE, WEIGHTS_FILE

if TYPE_CHECKING:
    from torch import Tensor

    from pipesvc.client.job import Job
    from pipesvc.client.run import Run
    from pipesvc.client.transport import Transport

    Source = Run | Path | None

# The weights are drawn by name; a file of this name is "./by_name".
BY_NAME: Final = "by_name"
_PIECE_BYTES: Final = 1 << 20
# A file of hundreds of gigabytes on a slow line.
_UPLOAD_S: Final = 24 * 3600.0


def check(name: str, value: object) -> None:
    """A run, or the path of a file that is there, or BY_NAME."""
    if isinstance(value, str) and value == BY_NAME:
        return
    if not isinstance(value, str | Path) and _is_run(value):
        return
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise refusal(name, value, f'a run, the path of a safetensors file, or "{BY_NAME}"')
    if not _is_file(Path(value)):
        raise refuse(
            f"{name} is {shown(str(value))}, and there is no such file", "For the weights of a run: client.attach(id)"
        )


def check_checkpoint(name: str, value: object) -> None:
    """A run, or the path of a folder with a checkpoint."""
    if not isinstance(value, str | Path) and _is_run(value):
        return
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise refusal(name, value, "a run, or the path of a folder that `run.save_checkpoint` wrote")
    for file in (WEIGHTS_FILE, TRAINING_FILE):
        if not _is_file(Path(value) / file):
            raise refuse(
                f"{name} is {shown(str(value))}, and there is no file {file} in such a folder",
                "Give a run (client.attach(id)), or a folder that `run.save_checkpoint` wrote",
            )


def sources_of(job: Job) -> tuple[Source, Source]:
    """What the job begins with: its weights, and the training state that belongs to them."""
    if isinstance(job.resume, str | Path):
        return Path(job.resume) / WEIGHTS_FILE, Path(job.resume) / TRAINING_FILE
    if job.resume is not None:
        return job.resume, job.resume
    if not is_given(job.init):
        return None, None
    return Path(job.init) if isinstance(job.init, str | Path) else job.init, None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_run(value: object) -> bool:
    from pipesvc.client.run import Run  # late: it imports gRPC, of which writing a job must stay free

    return isinstance(value, Run)


def is_given(value: Run | str | Path | None) -> TypeGuard[Run | str | Path]:
    """Whether there are weights to load."""
    return value is not None and value != BY_NAME


def message(source: Source) -> job_pb2.WeightsSource | None:
    if source is None:
        return None
    if not isinstance(source, Path):
        return job_pb2.WeightsSource(run_id=source.run_id)
    digest = hashlib.sha256()
    for data in _pieces(source):
        digest.update(data)
    return job_pb2.WeightsSource(sha256=digest.hexdigest(), path=printable(str(source)))


def state_of(value: Run | str | Path) -> dict[str, Tensor]:
    """The weights themselves, by name."""
    if not isinstance(value, str | Path):
        return value.state_dict()
    from safetensors.torch import load_file

    return load_file(value)


def send(transport: Transport, path: Path, sha256: str) -> None:
    """Have the coordinator keep the file; nothing is sent if it has it."""

    def requests() -> Iterator[run_pb2.UploadWeightsRequest]:
        yield run_pb2.UploadWeightsRequest(sha256=sha256)
        for data in _pieces(path):
            yield run_pb2.UploadWeightsRequest(data=data)

    def upload(_request: object, **options: Any) -> object:
        return transport.stub.UploadWeights(requests(), **options)

    transport.call(upload, None, timeout_s=_UPLOAD_S)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            yield data
