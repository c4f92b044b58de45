"""The commands `pipesvc weights` and `pipesvc checkpoint`: what a run has learned, as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipesvc.cli_options import Coordinator, RunId, TokenFile, connect
from pipesvc.net.addresses import DEFAULT_COORDINATOR


def weights(
    run_id: RunId,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="RUN.safetensors if not given.")] = None,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Fetch the whole model's state as one safetensors file; of a live run, after its next step."""
    from pipesvc.client.weights_file import is_replaced

    with connect(coordinator, token_file) as client:
        path = out if out is not None else Path(f"{run_id}.safetensors")
        step = client.attach(run_id).save_weights(path)
    # The weights may have gone to the standard output itself.
    print(f"{path}: the weights after step {step}", file=sys.stdout if is_replaced(path) else sys.stderr)


def checkpoint(
    run_id: RunId,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="RUN if not given.")] = None,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Fetch weights and training state into a folder, for `submit --resume`; of a live run, after its next step."""
    with connect(coordinator, token_file) as client:
        folder = out if out is not None else Path(run_id)
        step = client.attach(run_id).save_checkpoint(folder)
    print(f"{folder}: the checkpoint after step {step}")
