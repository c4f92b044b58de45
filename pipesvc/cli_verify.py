"""The command `pipesvc verify`: is it the same training in a pipeline as in one process?"""

from __future__ import annotations

from typing import Annotated

import typer

from pipesvc.cli_options import Coordinator, JobName, TokenFile, connect
from pipesvc.net.addresses import DEFAULT_COORDINATOR


def verify(
    job: JobName,
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many steps to train both ways.")] = 3,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Train a job's first steps on the workers and in one process here, and print the first difference.

    The exit status is 0 where there is none, or none beyond rounding between unlike processors; else 1.
    """
    from pipesvc.client.loading import load_job
    from pipesvc.verification.verify import verify as verify_job

    loaded = load_job(job)
    with connect(coordinator, token_file) as client:
        verdict = verify_job(client, loaded, num_steps=steps)
    print(verdict)
    if not verdict.is_green:
        raise typer.Exit(1)
