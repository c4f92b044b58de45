"""What people and clients see of a run: its state, and what is awaited, from whom, since when, until when, what then.

A service that waits without a word is a service that hangs; so every phase of a run has its line here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

from pipesvc.coordinator.evaluation import Evaluation, data_limit_s
from pipesvc.coordinator.limits import BEAT_TIMEOUT_S, CONCLUDE_BOUND_S, DATA_GRACE_S, MERGE_BOUND_S, SAVE_IDLE_S
from pipesvc.coordinator.reach import Unreached
from pipesvc.coordinator.run_record import Phase, RunRecord
from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import run_pb2
from pipesvc.wire.roles import role_name


def run_message(record: RunRecord, *, head: str = "", holder: str = "") -> run_pb2.Run:
    """The run as a client sees it. `head` is the run whose turn it is; `holder` keeps it from going on, if something
    does."""
    ledger = record.ledger
    return run_pb2.Run(
        run_id=record.run_id,
        name=record.job.name,
        state=record.shown_state,
        num_committed_steps=ledger.committed if ledger is not None else 0,
        num_steps=ledger.expected_steps(record.job.epochs, record.job.max_steps) if ledger is not None else 0,
        plan_json=record.plan_json,
        warnings=[*record.plan_warnings, *record.other_warnings],
        awaited=list(_awaited(record, head, holder)),
        links=list(record.links.values()),
        times=record.times,
        parameters=record.parameters,
        submitted_unix_ns=unix_ns(record.submitted_s),
        stage_steps=ledger.applied if ledger is not None else (),
        has_weights=record.has_weights,
        fingerprints=record.fingerprints,
        evaluated_step=record.evaluated_step,
        is_prediction=record.job.is_prediction,
        start=record.start if record.start.step else None,
    )


def ended_message(record: RunRecord, now_s: float) -> run_pb2.Run:
    """The run as it will be known for ever."""
    run = run_message(record)
    run.state = record.outcome
    run.ended_unix_ns = unix_ns(now_s)
    del run.awaited[:]
    if record.error is not None and record.outcome == run_pb2.RUN_STATE_FAILED:
        run.error.CopyFrom(record.error)
    return run


def without_flow(run: run_pb2.Run) -> run_pb2.Run:
    """The run as lists show it: who wants the flow in its plan, which is most of it, asks for that run."""
    brief = run_pb2.Run()
    brief.CopyFrom(run)
    if run.plan_json:
        brief.plan_json = _without_flow(run.plan_json)
    return brief


@lru_cache(maxsize=256)
def _without_flow(plan_json: str) -> str:
    """Of any version's plan; the others of this journal may be old."""
    return json.dumps(json.loads(plan_json) | {"flow_json": ""}, sort_keys=True, separators=(",", ":"))


def unreached_message(finding: Unreached) -> run_pb2.Unreached:
    """Two workers between which no run can go."""
    return run_pb2.Unreached(
        worker=finding.worker,
        peer=finding.peer,
        data_address=finding.data_address,
        problem=finding.problem,
        since_unix_ns=unix_ns(finding.since_s),
        num_probes=finding.num_probes,
    )


def unix_ns(time_s: float) -> int:
    return int(time_s * 1e9)


def worker_of(plan: Plan, stage: int) -> str:
    return plan.stages[stage].worker


def _awaited(record: RunRecord, head: str, holder: str) -> Iterator[run_pb2.Awaited]:
    match record.phase:
        case Phase.WANTING_INSPECTOR | Phase.QUEUED | Phase.WANTING_WORKERS if holder:
            yield bounded("its turn", holder, record.phase_since_s, None, "the run goes on")
        case Phase.WANTING_INSPECTOR:
            yield _line(record, "a worker that can inspect the model", "any worker", _fails(ErrorCode.MISSING_WORKER))
        case Phase.INSPECTING:
            for worker in record.inspector:
                yield _line(
                    record, "the layers of the model", f"inspector on {worker}", _fails(ErrorCode.BUILD_TIMED_OUT)
                )
        case Phase.ENDING_INSPECTION:
            for worker in record.unstopped:
                yield _line(record, "the end of the inspector", worker, "the run goes on")
        case Phase.QUEUED:
            yield _line(record, "its turn", f"run {head}" if head else "the queue", "the run starts")
        case Phase.WANTING_WORKERS:
            yield _line(record, record.missing_text, "workers that register", _fails(ErrorCode.MISSING_WORKER))
        case Phase.BUILDING:
            for child in sorted(record.unready):
                whom = f"{role_name(child.role)} on {child.worker}"
                yield _line(record, "ready", whom, _fails(ErrorCode.BUILD_TIMED_OUT))
        case Phase.RUNNING:
            yield from _awaited_running(record)
        case Phase.SAVING:
            yield from _awaited_saving(record)
        case Phase.STOPPING:
            for worker in sorted(record.unstopped):
                yield _line(record, "the end of the run's processes", worker, "the run ends without its word")
        case Phase.CONCLUDING:
            yield _line(record, "the run's end in the journal", "coordinator", "the run ends with a warning")


def _awaited_running(record: RunRecord) -> Iterator[run_pb2.Awaited]:
    ledger, plan = record.ledger, record.plan
    assert ledger is not None
    assert plan is not None
    since = ledger.since_s
    if record.echo is not None:
        until = record.echo_since_s + BEAT_TIMEOUT_S
        cause = f"the cause of {record.echo.code} on {record.echo.worker}"
        yield bounded(cause, "any worker", record.echo_since_s, until, "the run fails with what is known")
    elif record.evaluation is not None:
        yield from _awaited_evaluation(record, record.evaluation, plan)
    elif ledger.is_hungry:
        until = since + record.job.data.timeout_s + DATA_GRACE_S
        whom = f"feeder on {plan.feeder_worker}"
        yield bounded(
            f"the batch of step {ledger.issued + 1}", whom, since, until, _fails(ErrorCode.DATA_SOURCE_TIMED_OUT)
        )
    elif ledger.is_drained and record.outputs is not None and not ledger.lagging_stages:
        step = record.outputs.taken + 1
        yield bounded(f"word that the outputs of batch {step} are read", "the client", since, None, "the run goes on")
    else:
        until = record.cancel_deadline_s or since + record.step_limit_s
        then = "the run is cancelled without weights" if record.is_cancelled else _fails(ErrorCode.STEP_TIMED_OUT)
        for stage in ledger.lagging_stages:
            whom = f"stage {stage} on {worker_of(plan, stage)}"
            yield bounded(f"step {ledger.committed + 1}", whom, since, until, then)


def _awaited_evaluation(record: RunRecord, evaluation: Evaluation, plan: Plan) -> Iterator[run_pb2.Awaited]:
    passes = evaluation.passes
    since, batch = passes.since_s, f"batch {passes.committed + 1} of the evaluation after step {evaluation.after_step}"
    if passes.is_hungry:
        until = since + data_limit_s(record.job)
        whom = f"feeder on {plan.feeder_worker}"
        yield bounded(batch, whom, since, until, _fails(ErrorCode.DATA_SOURCE_TIMED_OUT))
    for stage in passes.lagging_stages:
        whom = f"stage {stage} on {worker_of(plan, stage)}"
        yield bounded(batch, whom, since, since + record.job.step_timeout_s, _fails(ErrorCode.STEP_TIMED_OUT))


def _awaited_saving(record: RunRecord) -> Iterator[run_pb2.Awaited]:
    assert record.plan is not None
    for save in record.saves.values():
        if save.is_merging:
            until = record.cancel_deadline_s or save.moved_s + MERGE_BOUND_S
            then = _fails(ErrorCode.TIMED_OUT)
            yield bounded("the weights in one file on its disk", "coordinator", save.moved_s, until, then)
            continue
        for stage in record.plan.stages:
            if stage.index not in save.whole:
                until = record.cancel_deadline_s or save.moved_s + SAVE_IDLE_S
                whom = f"stage {stage.index} on {stage.worker}"
                yield bounded("more of its weights", whom, save.moved_s, until, _fails(ErrorCode.TIMED_OUT))


def _line(record: RunRecord, what: str, whom: str, then: str) -> run_pb2.Awaited:
    until = record.deadline_s if record.phase is not Phase.CONCLUDING else record.phase_since_s + CONCLUDE_BOUND_S
    return bounded(what, whom, record.phase_since_s, until, then)


def bounded(what: str, whom: str, since_s: float, until_s: float | None, then: str) -> run_pb2.Awaited:
    """One wait, by whom it is ended and how long it may last at most."""
    return run_pb2.Awaited(
        what=what,
        from_whom=whom,
        since_unix_ns=unix_ns(since_s),
        until_unix_ns=unix_ns(until_s) if until_s is not None else 0,
        then=then,
    )


def _fails(code: ErrorCode) -> str:
    return f"the run fails with {code.value}"
