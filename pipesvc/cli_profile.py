"""The command `pipesvc profile`: what a job's layers cost on the workers that are there."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipesvc.cli_options import Coordinator, JobName, TokenFile, connect
from pipesvc.net.addresses import DEFAULT_COORDINATOR


def profile(
    job: JobName,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the costs as JSON instead of tables.")] = False,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Measure each layer on each worker's devices, and the links between workers, while no run is on them.

    Times are of one micro-batch: forward, backward, and the optimizer's update once a step.
    """
    from pipesvc.client.loading import load_job
    from pipesvc.client.profile_view import profile_text
    from pipesvc.client.profiling import ProfileLines
    from pipesvc.core.costs_json import to_json

    loaded = load_job(job)
    with connect(coordinator, token_file) as client:
        found = client.profile(loaded, is_fresh=fresh, on_event=ProfileLines(sys.stderr))
    print(to_json(found.costs, indent=1) if as_json else profile_text(found))
