"""Errors as the machines hold them.

A failure arrives as an `ErrorReport` and leaves as one in `Run.error`, so the machines keep that form; `net.reports`
makes exceptions of it at the edge, where grpc may be imported.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipesvc.coordinator.fleet import Loss, Member
from pipesvc.coordinator.run_record import RunRecord
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2


def failure(
    code: ErrorCode,
    message: str,
    *,
    advice: str = "",
    worker: str = "",
    host: str = "",
    stage: int | None = None,
    step: int | None = None,
) -> types_pb2.ErrorReport:
    """A failure that the coordinator itself has found."""
    return types_pb2.ErrorReport(
        code=code.value, message=message, advice=advice, worker=worker, host=host, stage=stage, step=step
    )


def failure_of(error: PipesvcError) -> types_pb2.ErrorReport:
    """A refusal of the planner or of a check, as a failure of the run."""
    where = error.details.where
    return failure(
        error.code,
        error.details.message,
        advice=error.details.advice,
        worker=where.worker,
        host=where.host,
        stage=where.stage,
        step=where.step,
    )


def placed(report: types_pb2.ErrorReport, member: Member) -> types_pb2.ErrorReport:
    """A child's failure, with its place filled in where the child did not know it."""
    placed_report = types_pb2.ErrorReport()
    placed_report.CopyFrom(report)
    placed_report.worker = report.worker or member.name
    placed_report.host = report.host or member.host
    return placed_report


def lost(loss: Loss, step: int | None) -> types_pb2.ErrorReport:
    """The failure of a run that used a worker which is gone."""
    member = loss.member
    return failure(
        ErrorCode.WORKER_LOST,
        f"worker {member.name} is lost: {loss.reason}",
        advice="Look at its terminal or log, start it again if it has ended, and submit the job again",
        worker=member.name,
        host=member.host,
        step=step,
    )


def not_ready(whom: Sequence[str], limit_s: float) -> types_pb2.ErrorReport:
    """Children that neither got ready nor failed."""
    message = f"{' and '.join(whom)} did not get ready within {limit_s:g} s"
    return failure(ErrorCode.BUILD_TIMED_OUT, message, advice="Raise build_timeout_s, or look at `pipesvc logs`")


def no_batch(what: str, limit_s: float, feeder_worker: str, step: int) -> types_pb2.ErrorReport:
    """A feeder that does not even say that its source is late. `what` is the batch that is due."""
    message = f"{what} did not come within {limit_s:g} s, and no word of the feeder"
    advice = "Raise the data source's timeout, or look why it blocks"
    return failure(ErrorCode.DATA_SOURCE_TIMED_OUT, message, advice=advice, worker=feeder_worker, step=step)


def step_timed_out(what: str, record: RunRecord, late: Sequence[tuple[int, str]], step: int) -> types_pb2.ErrorReport:
    """What was not done, for stages, each with its worker, hold it up."""
    compiles = record.job.strategy.compiles
    why = " (compile=True: compiling is part of a step, the first one and those with new shapes)" if compiles else ""
    said = ", ".join(f"stage {stage} on {worker}" for stage, worker in late)
    stage, worker = late[0]
    return failure(
        ErrorCode.STEP_TIMED_OUT,
        f"{what} within {record.step_limit_s:g} s by {said}{why}",
        advice="Raise step_timeout_s if the step is honest work; `pipesvc status` names what each stage awaits",
        worker=worker,
        stage=stage,
        step=step,
    )
