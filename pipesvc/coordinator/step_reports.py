"""What the feeder and the stages report of steps, and what it makes of the ledger.

Kept apart from the life of a run, which only wants to know whether the run can go on.
"""

from __future__ import annotations

import math

from pipesvc.coordinator import evaluation
from pipesvc.coordinator.events import RecordApplied, RecordStep
from pipesvc.coordinator.failures import failure
from pipesvc.coordinator.fleet import Member
from pipesvc.coordinator.run_record import RunRecord
from pipesvc.coordinator.turn import Turn
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2


def take(record: RunRecord, turn: Turn, member: Member, report: local_pb2.FromChild) -> types_pb2.ErrorReport | None:
    """Count it. Returns the failure of the run, if the step was one; raises what contradicts the ledger."""
    assert record.ledger is not None
    assert record.plan is not None
    kind = report.WhichOneof("message")
    if kind != "step_applied" and member.name != record.plan.feeder_worker:
        return None
    if getattr(report, kind or "").kind == local_pb2.PASS_KIND_EVALUATION:
        evaluation.take(record, turn, report)
    elif kind == "batch_announced":
        record.ledger.announce(report.batch_announced)
    elif kind == "data_ended":
        return _end(record, report.data_ended.num_steps)
    else:
        applied = report.step_applied
        done = record.ledger.apply(applied, turn.now_s)
        turn.commands.append(RecordApplied(run_id=record.run_id, stage=applied.stage, step=applied.step))
        if done is not None:
            return _commit(record, turn, done)
    return None


def _end(record: RunRecord, num_steps: int) -> types_pb2.ErrorReport | None:
    assert record.ledger is not None
    record.ledger.end(num_steps)
    if num_steps == record.start.step and num_steps:
        message = f"the data end where the checkpoint stands, after step {num_steps}: nothing is left to train"
        advice = "epochs counts from the beginning of the training: raise it"
        return failure(ErrorCode.INVALID_JOB, message, advice=advice, step=num_steps)
    if num_steps < record.job.max_steps:
        warning = f"the data ended after {num_steps} steps, before max_steps={record.job.max_steps}"
        record.other_warnings.append(warning)
    record.is_changed = True
    return None


def _commit(record: RunRecord, turn: Turn, done: run_pb2.StepRecord) -> types_pb2.ErrorReport | None:
    turn.commands.append(RecordStep(run_id=record.run_id, record=done))
    turn.to_feeder(record, local_pb2.ToChild(step_committed=local_pb2.StepCommitted(step=done.step)))
    if not record.job.check_finite or math.isfinite(done.loss):
        return None
    message = f"the loss of step {done.step} is {done.loss}"
    advice = "Lower the learning rate, clip the gradients, or look at that step's batch"
    return failure(ErrorCode.NON_FINITE_LOSS, message, advice=advice, step=done.step)
