"""A run beside what is expected of it: what has to be asked for that, in an order that wastes no measurement."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from pipesvc.client import planning
from pipesvc.client.compare import Line, check_same_rows, compare, differences
from pipesvc.client.job import Job
from pipesvc.client.profiling import OnEvent
from pipesvc.client.run import Run
from pipesvc.client.spec import check_is_job, measurable
from pipesvc.client.stale import doubting
from pipesvc.errors import ErrorCode, PipesvcError

if TYPE_CHECKING:
    from pipesvc.client.connection import Client


def compare_run(client: Client, job: Job, run_id: str, *, is_planned: bool, on_event: OnEvent | None) -> list[Line]:
    """See `Client.compare`. Raises INVALID_PLAN where run and job differ in layers, rows of a micro-batch, or plan."""
    check_is_job(job)
    run = client.attach(run_id)
    plan = run.plan()
    if is_planned and (found := differences(job, plan)):
        message = f"the run {run_id} has another plan: {'; '.join(found)}"
        raise PipesvcError(ErrorCode.INVALID_PLAN, message, advice="Compare it without the plan file.")
    known = client.profile(measurable(job, max(1, plan.micro_batches // job.accumulate)), on_event=on_event)
    if num_rows := _num_rows(run):
        check_same_rows(known.costs, plan, num_rows)
    with doubting(known.are_kept):
        fingerprints = planning.crew_of(client.status()).fingerprints
        report, evaluated = planning.predict(
            plan, known.costs, fingerprints, decides=job.decides, codec=job.strategy.codec
        )
    # Taken last: a live run goes on while its job is measured, or is waited for.
    num_steps = run.info().num_committed_steps
    return compare(report, evaluated.step, trace=run.trace(), links=run.links(), num_steps=num_steps)


def _num_rows(run: Run) -> int:
    """Of the first step; 0 before there is one."""
    if not run.info().num_committed_steps:
        return 0
    with closing(run.steps()) as steps:
        return next((step.num_rows for step in steps), 0)
