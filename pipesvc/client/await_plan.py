"""What a submitted run is waited for, so that mistakes show where the job was written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Final

from pipesvc.client.job import Job
from pipesvc.client.transport import Transport
from pipesvc.client.watching import ENDED, NO_STEP, PipesvcWarning, failure_of, watch
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import run_pb2

_PLANNED: Final = frozenset({run_pb2.RUN_STATE_BUILDING, run_pb2.RUN_STATE_RUNNING, run_pb2.RUN_STATE_SAVING}) | ENDED


def await_plan(
    transport: Transport,
    run_id: str,
    job: Job,
    on_event: Callable[[run_pb2.Run], None] | None,
    farewell: Callable[[str], str],
) -> None:
    """Return once the run has a plan or stands behind another one; raises what it was refused for.

    `farewell` says what becomes of a run that is left alone.
    """
    limit_s = 2 * job.worker_wait_s + job.build_timeout_s
    shown: set[str] = set()
    try:
        with closing(watch(transport, run_id, from_step=NO_STEP, limit_s=limit_s)) as events:
            for event in events:
                if not isinstance(event, run_pb2.Run):
                    continue
                if on_event is not None:
                    on_event(event)
                for text in event.warnings:
                    if text not in shown:
                        shown.add(text)
                        warnings.warn(text, PipesvcWarning, stacklevel=4)
                failure = failure_of(event)
                if failure is not None:
                    raise failure
                if event.plan_json or event.state in _PLANNED or _stands_behind_another(event):
                    return
    except PipesvcError as error:
        if error.code is not ErrorCode.TIMED_OUT:
            raise
        raise PipesvcError(
            ErrorCode.TIMED_OUT,
            f"the run has no plan after {limit_s:g} s",
            advice=farewell(run_id),
            where=Where(run_id=run_id),
        ) from None


def _stands_behind_another(run: run_pb2.Run) -> bool:
    """True for an inspected run that waits for the end of another; its plan is made when its turn comes."""
    others = {awaited.from_whom for awaited in run.awaited} - {f"run {run.run_id}"}
    return run.state == run_pb2.RUN_STATE_QUEUED and any(whom.startswith("run ") for whom in others)
