"""What the commands that talk to a coordinator share: their options, and the client that they make of them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import COORDINATOR_VARIABLE

if TYPE_CHECKING:
    from pipesvc.client.connection import Client

Coordinator = Annotated[
    str,
    typer.Option("--coordinator", envvar=COORDINATOR_VARIABLE, metavar="HOST:PORT", help="The coordinator's address."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="The coordinator's token, if it runs as another user or elsewhere."
    ),
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
JobName = Annotated[str, typer.Argument(metavar="PATH:NAME", help="As in examples/char_lm.py:job.")]


def connect(address: str, token_file: Path | None) -> AbstractContextManager[Client]:
    from pipesvc.client.command import connected

    return connected(address, token_file)


def check_writable(path: Path | None) -> None:
    """Refuses a file that could not be written, before the work whose result it is for."""
    if path is None:
        return
    if path.is_dir():
        problem = "it is a directory"
    elif not path.parent.is_dir():
        problem = f"there is no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "permission denied"
    else:
        return
    raise PipesvcError(ErrorCode.INVALID_JOB, f"the file {path} cannot be written: {problem}", advice="Name another.")
