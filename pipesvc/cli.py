"""The command `pipesvc`: the three programs behind one name.

It stands above all floors, so each command imports what it runs only when it runs; `pipesvc --help` reads no gRPC.
Whatever goes wrong ends as one line on standard error and the exit code of the error catalogue; the traceback of
user code is in `pipesvc logs`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipesvc.cli_errors import error_line, os_error_line, show_warning
from pipesvc.cli_options import Coordinator, JobName, RunId, TokenFile, check_writable, connect
from pipesvc.cli_plan import plan as plan_command
from pipesvc.cli_profile import profile
from pipesvc.cli_verify import verify
from pipesvc.cli_weights import checkpoint, weights
from pipesvc.errors import PipesvcError
from pipesvc.net.addresses import DEFAULT_COORDINATOR

if TYPE_CHECKING:
    from pipesvc.client.run import Run

app = typer.Typer(
    name="pipesvc",
    help="Train a PyTorch model whose layers do not belong on one machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let the port face the network: without encryption, guarded by a token only.")
]


@app.command()
def coordinator(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0 takes a free one.")
    ] = DEFAULT_COORDINATOR,
    state_dir: Annotated[
        Path, typer.Option("--state-dir", metavar="DIR", help="Journal, token, logs and weights.")
    ] = Path("pipesvc-state"),
    insecure: Insecure = False,
) -> None:
    """Run the coordinator: it queues jobs and leads their steps."""
    from pipesvc.coordinator.app import main as run_coordinator
    from pipesvc.coordinator.settings import CoordinatorSettings

    settings = CoordinatorSettings(listen=listen, state_dir=state_dir, is_insecure=insecure)
    raise typer.Exit(run_coordinator(settings))


@app.command()
def worker(
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Unique in the cluster.")] = "",
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda:0, or several with commas between.")
    ] = "cpu",
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where other workers send tensors.")
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="That address as the others must dial it, if it differs."
        ),
    ] = "",
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="Threads of torch; 0: a share of the host's cores.")
    ] = 0,
    memory: Annotated[
        str,
        typer.Option(
            "--memory", metavar="SIZE", help="The most that stages may take here, such as 8GiB; all if not said."
        ),
    ] = "",
    token_file: TokenFile = None,
    insecure: Insecure = False,
    no_checksum: Annotated[bool, typer.Option("--no-checksum", help="Send tensors without their CRC-32C.")] = False,
    coordinator_wait: Annotated[
        float,
        typer.Option("--coordinator-wait", metavar="SECONDS", help="How long to dial a coordinator that is away."),
    ] = 600.0,
) -> None:
    """Run a worker: it holds stages of the model and computes."""
    from pipesvc.client import checks
    from pipesvc.worker.agent import main as run_worker
    from pipesvc.worker.settings import WorkerSettings

    if name:
        checks.text("--name", name, most=63)
    settings = WorkerSettings(
        coordinator=coordinator,
        name=name or f"{platform.node() or 'worker'}-{os.getpid()}",
        device=device,
        listen=listen,
        advertise=advertise,
        num_threads=threads,
        memory=memory,
        token_file=token_file,
        is_insecure=insecure,
        has_checksums=not no_checksum,
        coordinator_wait_s=coordinator_wait,
    )
    raise typer.Exit(run_worker(settings))


@app.command()
def submit(
    job: JobName,
    run_id: Annotated[str | None, typer.Option("--run-id", help="A repeat with the same id is the same run.")] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="A plan file; its memory is checked first.")
    ] = None,
    resume: Annotated[
        str, typer.Option("--resume", metavar="RUN|DIR", help="Go on from that run's end, or from a checkpoint.")
    ] = "",
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Submit a job and follow it. Ctrl-C leaves the run going, unless this command streams its data."""
    from pipesvc.client.command import cancel_streamed
    from pipesvc.client.loading import load_job
    from pipesvc.client.plan_file import read_plan
    from pipesvc.client.progress import SubmitView

    loaded = load_job(job)
    if plan is not None:
        loaded = replace(loaded, strategy=read_plan(plan))
    view = SubmitView(sys.stdout, sys.stderr)
    with connect(coordinator, token_file) as client:
        if resume:
            loaded = replace(loaded, resume=resume if Path(resume).is_dir() else client.attach(resume))
        try:
            _follow(client.submit(loaded, run_id, on_event=view, is_planned=plan is not None))
        except KeyboardInterrupt as interrupt:
            if view.run_id and client.is_source_of(view.run_id):
                cancel_streamed(view.run_id, coordinator, token_file)
            else:
                notes = getattr(interrupt, "__notes__", [client.farewell(view.run_id)] if view.run_id else [])
                print("", *notes, sep="\n", file=sys.stderr)
            raise


app.command("plan")(plan_command)
app.command()(profile)
app.command()(verify)


@app.command()
def watch(run_id: RunId, coordinator: Coordinator = DEFAULT_COORDINATOR, token_file: TokenFile = None) -> None:
    """Follow a run until it ends: step, loss, rows per second, time left."""
    with connect(coordinator, token_file) as client:
        try:
            _follow(client.attach(run_id))
        except KeyboardInterrupt:
            print(f"\n{client.farewell(run_id)}", file=sys.stderr)
            raise


@app.command()
def runs(coordinator: Coordinator = DEFAULT_COORDINATOR, token_file: TokenFile = None) -> None:
    """List all runs, oldest first."""
    from pipesvc.client.report import runs_text

    with connect(coordinator, token_file) as client:
        print(runs_text(client.runs()))


@app.command()
def status(
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="This run alone, also when it has ended.")] = None,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Show the workers, the queue, what is awaited, from whom, since when, until when, and why workers are idle."""
    from pipesvc.client.report import run_text, status_text

    with connect(coordinator, token_file) as client:
        print(status_text(client.status()) if run_id is None else run_text(client.attach(run_id).info()))


@app.command()
def logs(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Print what user code printed on all workers, and the traceback of what failed the run."""
    from pipesvc.client.report import traceback_text

    with connect(coordinator, token_file) as client:
        run = client.attach(run_id)
        for line in run.logs(follow=follow):
            stream = sys.stderr if line.is_stderr else sys.stdout
            print(f"[{line.worker} {line.role}] {line.line}", file=stream, flush=True)
        if text := traceback_text(run.info()):
            print(text, file=sys.stderr)


@app.command()
def trace(
    run_id: RunId,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here instead of standard output.")] = None,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Print what each stage did when, and what it waited for, as JSON."""
    check_writable(out)
    with connect(coordinator, token_file) as client:
        text = json.dumps(client.attach(run_id).trace(), indent=1)
    if out is None:
        print(text)
    else:
        out.write_text(f"{text}\n")


app.command()(weights)
app.command()(checkpoint)


@app.command()
def cancel(run_id: RunId, coordinator: Coordinator = DEFAULT_COORDINATOR, token_file: TokenFile = None) -> None:
    """End a run after the steps already issued; its weights are kept."""
    with connect(coordinator, token_file) as client:
        print(f"{run_id}: {client.attach(run_id).cancel()}")


@app.command()
def health(
    worker: Annotated[
        str, typer.Option("--worker", metavar="NAME", help="Ask also whether this worker is registered.")
    ] = "",
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Say in one line whether the coordinator answers, and exit with 0 or 1: for health checks."""
    try:
        with connect(coordinator, token_file) as client:
            names = [found.registration.name for found in client.status().workers]
    except PipesvcError as error:
        print(error_line(error), file=sys.stderr)
        raise typer.Exit(1) from None
    if worker and worker not in names:
        print(f"pipesvc: the coordinator at {coordinator} has no worker {worker}", file=sys.stderr)
        raise typer.Exit(1)
    print(f"healthy: the coordinator at {coordinator} has {len(names)} worker{'s' if len(names) != 1 else ''}")


def _follow(run: Run) -> None:
    from pipesvc.client.progress import follow
    from pipesvc.client.run import cancelled

    if follow(run) == "CANCELLED":
        raise cancelled(run.run_id)


def main() -> NoReturn:
    """The entry point."""
    warnings.showwarning = show_warning
    try:
        app()
    except PipesvcError as error:
        print(error_line(error), file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        print(os_error_line(error), file=sys.stderr, flush=True)
        sys.exit(1)
    sys.exit(0)
