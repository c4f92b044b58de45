"""The command `pipesvc plan`: what a job will cost on the workers that are there, before it runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipesvc.cli_options import Coordinator, JobName, TokenFile, check_writable, connect
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import DEFAULT_COORDINATOR


def plan(
    job: JobName,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write a plan file, to edit and submit.")
    ] = None,
    gantt: Annotated[bool, typer.Option("--gantt", help="Draw the simulated step.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw it as an image.")] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Take the strategy of this plan file, as submit does.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="RUN", help="Print what was predicted for this run beside what it did."),
    ] = None,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    token_file: TokenFile = None,
) -> None:
    """Print which worker gets which layers, how long a step will take, and what memory that needs.

    Layers, devices and links are measured first if they are not known yet. A comparison is of the run's own plan.
    """
    if compare is not None:
        _refuse_beside("--compare", "prints a comparison alone", {"--out": out, "--gantt": gantt, "--svg": svg})
    if as_json:
        _refuse_beside("--json", "prints JSON alone", {"--gantt": gantt})
    check_writable(out)
    check_writable(svg)
    for option, path in {"--out": out, "--plan": plan}.items():
        if path is not None and svg is not None and path.resolve() == svg.resolve():
            message = f"{option} and --svg are the same file, {path}"
            raise PipesvcError(ErrorCode.INVALID_JOB, message, advice="Name two files.")
    from pipesvc.client import plan_view
    from pipesvc.client.compare import comparison_json
    from pipesvc.client.gantt import gantt_text
    from pipesvc.client.gantt_svg import gantt_svg
    from pipesvc.client.loading import load_job
    from pipesvc.client.plan_file import plan_file_text, read_plan
    from pipesvc.client.profiling import ProfileLines

    loaded = load_job(job)
    if plan is not None:
        loaded = replace(loaded, strategy=read_plan(plan))
    with connect(coordinator, token_file) as client:
        if compare is not None:
            waits = ProfileLines(sys.stderr)
            lines = client.compare(loaded, compare, is_planned=plan is not None, on_event=waits)
            print(comparison_json(lines) if as_json else plan_view.comparison_text(lines))
            return
        planned = client.plan(loaded, on_event=ProfileLines(sys.stderr))
    report = planned.report
    print(report.to_json() if as_json else plan_view.plan_text(report))
    if gantt:
        print(gantt_text(planned.rows, planned.evaluated.step.spans, width=shutil.get_terminal_size().columns))
    if svg is not None:
        svg.write_text(gantt_svg(planned.rows, planned.evaluated.step.spans, title=plan_view.title(report)))
    if out is not None:
        out.write_text(plan_file_text(planned.strategy, report, out.parent))


def _refuse_beside(option: str, because: str, others: Mapping[str, object]) -> None:
    given = [name for name, value in others.items() if value not in (None, False)]
    if given:
        message = f"{option} {because}, not with {', '.join(given)}"
        raise PipesvcError(ErrorCode.INVALID_JOB, message, advice="Leave one of them out.")
