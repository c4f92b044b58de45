"""The life of one run: what every report, loss, wish and deadline makes of it.

Training jobs hang where two pieces of code each believe that the other one will act. Here every phase has one way in
(`_enter`, which sets its limit), every wait has a deadline that `tick` enforces, and every end goes through the same
door: stop all children, write the journal, and only then say that the run has ended.

    WANTING_INSPECTOR > INSPECTING > ENDING_INSPECTION > QUEUED > WANTING_WORKERS >
    BUILDING > RUNNING > SAVING > STOPPING > CONCLUDING > ENDED
    (any phase before STOPPING may go there at once, on failure or cancel)
"""

from __future__ import annotations

from pipesvc.coordinator import evaluation, inspection, outputs, saves, step_reports
from pipesvc.coordinator.events import ConcludeRun
from pipesvc.coordinator.failures import failure, failure_of, lost, no_batch, not_ready, placed, step_timed_out
from pipesvc.coordinator.fleet import Loss, Member
from pipesvc.coordinator.limits import (
    BEAT_TIMEOUT_S,
    CANCEL_BOUND_S,
    CONCLUDE_BOUND_S,
    DATA_GRACE_S,
    ECHO_WAIT_S,
    MAX_INSPECTIONS,
    STOP_BOUND_S,
)
from pipesvc.coordinator.outputs import Outputs
from pipesvc.coordinator.planning import plan_for, plan_warnings, unreachable
from pipesvc.coordinator.run_record import STATES, Child, Phase, RunRecord
from pipesvc.coordinator.run_view import ended_message
from pipesvc.coordinator.step_ledger import StepLedger
from pipesvc.coordinator.turn import Turn
from pipesvc.core.fingerprints import fingerprint_warnings
from pipesvc.core.placement import MissingWorkers
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2
from pipesvc.wire.roles import role_name

_WORKING = (Phase.BUILDING, Phase.RUNNING, Phase.SAVING)
_ENDING = (Phase.STOPPING, Phase.CONCLUDING, Phase.ENDED)


class RunMachine:
    """Turns events into commands and into a new state of its record; holds no clock and does nothing itself."""

    def __init__(self, record: RunRecord, now_s: float) -> None:
        self.record = record
        self._enter(Phase.WANTING_INSPECTOR, now_s, record.job.worker_wait_s)

    # --- what moves a run on by itself ------------------------------------------------------------------------------

    def advance(self, turn: Turn, *, is_head: bool, inspecting: frozenset[str]) -> None:
        """Take every step that is possible now. `inspecting` are workers that inspect for some run already."""
        match self.record.phase:
            case Phase.WANTING_INSPECTOR:
                self._try_inspect(turn, inspecting)
            case Phase.QUEUED | Phase.WANTING_WORKERS if is_head:
                self._try_start(turn)
            case Phase.RUNNING:
                self._issue(turn)

    def tick(self, turn: Turn) -> None:
        """Enforce the limits of what is awaited."""
        record = self.record
        self._settle_echo(turn)
        if record.phase is Phase.RUNNING and record.echo is None:
            self._tick_running(turn)
        if outputs.is_abandoned(record, turn.now_s):
            self._warn("nobody has been reading the outputs: is the process that called `predict` gone?")
            self.cancel(turn)
        if record.phase in (Phase.RUNNING, Phase.SAVING):
            if (error := saves.overdue(record, turn)) is not None:
                self.fail(turn, error)
            elif record.cancel_deadline_s is not None and turn.now_s >= record.cancel_deadline_s:
                self._warn(f"cancelled without weights: they were not stored within {CANCEL_BOUND_S:g} s")
                self._stop(turn, run_pb2.RUN_STATE_CANCELLED)
        elif record.deadline_s is not None and turn.now_s >= record.deadline_s:
            self._run_out(turn)

    def _try_inspect(self, turn: Turn, inspecting: frozenset[str]) -> None:
        record = self.record
        if (member := inspection.next_inspector(record, turn.fleet, inspecting)) is None:
            return
        record.inspector, record.layers = {member.name: member.incarnation}, ()
        record.num_inspections += 1
        self._enter(Phase.INSPECTING, turn.now_s, record.job.build_timeout_s)
        turn.start_inspector(record, member.name, member.incarnation)

    def _try_start(self, turn: Turn) -> None:
        record = self.record
        if record.phase is Phase.WANTING_WORKERS and record.planned_generation == turn.fleet.generation:
            return
        if not self._make_plan(turn):
            return
        if record.plan is None:
            if record.phase is Phase.QUEUED:
                self._enter(Phase.WANTING_WORKERS, turn.now_s, record.job.worker_wait_s)
            return
        plan = record.plan
        if (error := unreachable(record.job, plan, turn.fleet, turn.now_s)) is not None:
            self.fail(turn, error)
            return
        members = {name: turn.fleet.member(name) for name in (*plan.workers, plan.feeder_worker)}
        record.crew = {name: member.incarnation for name, member in members.items() if member is not None}
        record.unready = {Child(name, types_pb2.ROLE_EXECUTOR) for name in plan.workers}
        record.unready.add(Child(plan.feeder_worker, types_pb2.ROLE_FEEDER))
        record.ledger = StepLedger(plan.num_stages, record.start)
        self._enter(Phase.BUILDING, turn.now_s, record.job.build_timeout_s)
        turn.start_crew(record)

    def _make_plan(self, turn: Turn) -> bool:
        """Plan with the workers that are here; False when the job was refused."""
        record = self.record
        record.planned_generation = turn.fleet.generation
        if (reason := inspection.uncut(record, turn.fleet)) is not None:
            self.fail(turn, reason)
            return False
        try:
            plan = plan_for(record.job, record.layers, turn.fleet, record.flow_json, is_whole=record.is_whole)
        except PipesvcError as error:
            self.fail(turn, failure_of(error))
            return False
        if (refusal := inspection.refusal(record, plan)) is not None:
            self.fail(turn, refusal)
            return False
        if inspection.needs_confirmation(record, plan):
            self._enter(Phase.WANTING_INSPECTOR, turn.now_s, record.job.worker_wait_s)
            return False
        record.is_changed = True
        if isinstance(plan, MissingWorkers):
            record.plan, record.plan_json, record.missing_text, record.plan_warnings = None, "", plan.text, ()
        else:
            record.plan, record.plan_json, record.missing_text = plan, plan.to_json(), ""
            record.plan_warnings = plan_warnings(record.job, plan, turn.fleet)
        return True

    def _issue(self, turn: Turn) -> None:
        record, ledger = self.record, self.record.ledger
        assert ledger is not None
        if record.echo is not None:
            return
        if record.is_cancelled and ledger.is_drained and not ledger.committed:
            self._stop(turn, run_pb2.RUN_STATE_CANCELLED)
        elif record.outputs is None and not record.is_cancelled and evaluation.holds(record, turn):
            return
        elif record.outputs is not None:
            self._predict(turn, ledger, record.outputs)
        elif ledger.is_drained and (record.is_cancelled or ledger.is_complete):
            self._enter(Phase.SAVING, turn.now_s, None)
            saves.begin_final(record, turn)
        elif not record.is_cancelled:
            while not evaluation.holds(record, turn) and (batch := ledger.issue(turn.now_s)) is not None:
                turn.issue(record, batch)

    def _predict(self, turn: Turn, ledger: StepLedger, read: Outputs) -> None:
        """A prediction leaves nothing behind: it ends when the client has everything."""
        record = self.record
        if ledger.is_drained and record.is_cancelled:
            self._stop(turn, run_pb2.RUN_STATE_CANCELLED)
        elif ledger.is_complete and read.taken == ledger.num_steps:
            self._stop(turn, run_pb2.RUN_STATE_COMPLETED)
        while not record.is_cancelled and read.may_compute(ledger.issued + 1):
            if (batch := ledger.issue(turn.now_s)) is None:
                return
            turn.issue(record, batch, local_pb2.PASS_KIND_PREDICTION)

    # --- what the world tells ---------------------------------------------------------------------------------------

    def child_reported(self, turn: Turn, member: Member, role: int, report: local_pb2.FromChild) -> None:
        """A message of a child of this run, on a worker that is alive."""
        record = self.record
        is_inspector = role == types_pb2.ROLE_INSPECTOR
        if (record.inspector if is_inspector else record.crew).get(member.name) != member.incarnation:
            return
        match report.WhichOneof("message"):
            case "failed" if not is_inspector or (record.phase is Phase.INSPECTING and not record.layers):
                self.fail(turn, placed(report.failed, member))
            case "failed" if record.phase is Phase.INSPECTING:
                self._end_inspection(turn)
            case "inspected" if is_inspector and record.phase is Phase.INSPECTING:
                if inspection.reported(record, member.name, report.inspected):
                    self._end_inspection(turn)
            case "ready" if record.phase is Phase.BUILDING:
                self._ready(turn, Child(member.name, role), report.ready)
            case "batch_announced" | "data_ended" | "step_applied" if record.phase in (Phase.BUILDING, Phase.RUNNING):
                # The feeder reads ahead while executors still build.
                try:
                    error = step_reports.take(record, turn, member, report)
                except PipesvcError as contradiction:
                    error = placed(failure_of(contradiction), member)
                if error is not None:
                    self.fail(turn, error)

    def _end_inspection(self, turn: Turn) -> None:
        record = self.record
        record.unstopped = turn.stop_children(record, record.inspector.items(), "the model is inspected")
        self._enter(Phase.ENDING_INSPECTION, turn.now_s, STOP_BOUND_S)

    def _ready(self, turn: Turn, child: Child, ready: local_pb2.Ready) -> None:
        record = self.record
        record.unready.discard(child)
        record.is_changed = True
        if child.role == types_pb2.ROLE_FEEDER:
            record.is_feeder_ready = True
        else:
            record.parameters[child.worker] = run_pb2.WorkerParameters(parameters=ready.parameters)
            record.fingerprints[child.worker] = ready.fingerprint
        if record.unready or record.ledger is None:
            return
        if not any("numeric fingerprints" in warning for warning in record.plan_warnings):
            record.plan_warnings += fingerprint_warnings(record.fingerprints)
        record.ledger.begin(turn.now_s)
        self._enter(Phase.RUNNING, turn.now_s, None)

    def run_stopped(self, turn: Turn, member: Member) -> None:
        """All children of this run on this worker are gone; that should have been asked for."""
        record = self.record
        if record.crew.get(member.name) == member.incarnation and record.phase in _WORKING:
            message = f"worker {member.name} has ended the run's processes"
            advice = "Was the worker stopped? Look at its terminal or log"
            self.fail(turn, failure(ErrorCode.CHILD_DIED, message, advice=advice, worker=member.name, host=member.host))
        self._stopped(turn, member.name)

    def worker_lost(self, turn: Turn, loss: Loss) -> None:
        record, member = self.record, loss.member
        if record.inspector.get(member.name) == member.incarnation and not record.crew:
            del record.inspector[member.name]
            if record.phase is Phase.INSPECTING and record.num_inspections < MAX_INSPECTIONS:
                self._enter(Phase.WANTING_INSPECTOR, turn.now_s, record.job.worker_wait_s)
            elif record.phase is Phase.INSPECTING:
                self.fail(turn, lost(loss, self._step))
        elif record.crew.get(member.name) == member.incarnation:
            del record.crew[member.name]
            self.fail(turn, lost(loss, self._step))
        self._stopped(turn, member.name)

    @property
    def _step(self) -> int | None:
        """The step that the run is in."""
        is_running = self.record.phase is Phase.RUNNING and self.record.ledger is not None
        return self.record.ledger.committed + 1 if is_running and self.record.ledger is not None else None

    def fail(self, turn: Turn, error: types_pb2.ErrorReport) -> None:
        """A failure of the run. The first real one wins over echoes of it that came earlier."""
        record = self.record
        error.run_id = record.run_id
        if record.phase in _ENDING:
            is_better = record.error is not None and record.error.is_echo and not error.is_echo
            if record.phase is Phase.STOPPING and is_better:
                record.error = error
            return
        if record.phase is Phase.SAVING and saves.is_final_whole(record):
            return
        if not error.is_echo:
            self._stop_failed(turn, error)
        elif record.echo is None:
            record.echo, record.echo_since_s, record.is_changed = error, turn.now_s, True

    def cancel(self, turn: Turn) -> None:
        """End after the steps that are issued, with their weights; before the first step, at once."""
        record = self.record
        if record.is_cancelled or record.phase in _ENDING:
            return
        record.is_cancelled = record.is_changed = True
        if record.phase not in (Phase.RUNNING, Phase.SAVING):
            self._stop(turn, run_pb2.RUN_STATE_CANCELLED)
        else:
            record.cancel_deadline_s = turn.now_s + CANCEL_BOUND_S

    def weights_merged(self, turn: Turn, *, step: int, problem: str) -> None:
        record = self.record
        error = saves.merged(record, turn, step=step, problem=problem)
        if error is not None:
            record.error = None
            self._stop_failed(turn, error)
        elif record.has_weights and record.phase is Phase.SAVING:
            is_cancelled = record.is_cancelled
            self._stop(turn, run_pb2.RUN_STATE_CANCELLED if is_cancelled else run_pb2.RUN_STATE_COMPLETED)

    def concluded(self, problem: str) -> None:
        """The journal has the run's end, or cannot have it."""
        if self.record.phase is Phase.CONCLUDING:
            if problem:
                self._warn(f"the end of this run is not in the journal: {problem}")
            self._enter(Phase.ENDED, self.record.phase_since_s, None)

    # --- limits and ends --------------------------------------------------------------------------------------------

    def _tick_running(self, turn: Turn) -> None:
        record, ledger, plan = self.record, self.record.ledger, self.record.plan
        assert ledger is not None
        assert plan is not None
        if record.evaluation is not None:
            if (error := evaluation.overdue(record, turn)) is not None:
                self.fail(turn, error)
            return
        waited_s = turn.now_s - ledger.since_s
        if ledger.is_hungry and not record.is_cancelled:
            limit_s, step = record.job.data.timeout_s, ledger.issued + 1
            if waited_s >= limit_s + DATA_GRACE_S:
                self.fail(turn, no_batch(f"the batch of step {step}", limit_s, plan.feeder_worker, step))
        elif not ledger.is_drained and waited_s >= record.step_limit_s:
            late = [(stage, plan.stages[stage].worker) for stage in ledger.lagging_stages]
            step = ledger.committed + 1
            self.fail(turn, step_timed_out(f"step {step} was not applied", record, late, step))

    def _settle_echo(self, turn: Turn) -> None:
        """An echo becomes the run's failure when no better one came, and no worker is suspected to be the cause."""
        record = self.record
        if record.echo is None or record.phase in _ENDING:
            return
        if record.phase is Phase.SAVING and saves.is_final_whole(record):
            record.echo = None
            return
        waited_s = turn.now_s - record.echo_since_s
        is_open = waited_s < BEAT_TIMEOUT_S and any(turn.fleet.is_suspect(name, turn.now_s) for name in record.crew)
        if waited_s >= ECHO_WAIT_S and not is_open:
            self._stop_failed(turn, record.echo)

    def _run_out(self, turn: Turn) -> None:
        """The deadline of a phase has passed."""
        record = self.record
        match record.phase:
            case Phase.WANTING_INSPECTOR if turn.fleet.available:
                # All of them inspect for runs that came earlier, each within a limit of its own.
                record.deadline_s = turn.now_s + record.job.worker_wait_s
            case Phase.WANTING_INSPECTOR:
                self.fail(turn, inspection.nobody_came(record))
            case Phase.WANTING_WORKERS:
                message = f"{record.missing_text}: they did not come within {record.job.worker_wait_s:g} s"
                advice = "Start the missing workers, or ask for fewer stages"
                self.fail(turn, failure(ErrorCode.MISSING_WORKER, message, advice=advice))
            case Phase.INSPECTING if record.layers:
                self._end_inspection(turn)
            case Phase.INSPECTING:
                whom = [f"the inspector on {worker}" for worker in record.inspector]
                self.fail(turn, not_ready(whom, record.job.build_timeout_s))
            case Phase.BUILDING:
                whom = [f"the {role_name(child.role)} on {child.worker}" for child in sorted(record.unready)]
                self.fail(turn, not_ready(whom, record.job.build_timeout_s))
            case Phase.ENDING_INSPECTION | Phase.STOPPING:
                for worker in sorted(record.unstopped):
                    self._warn(f"worker {worker} did not say within {STOP_BOUND_S:g} s that its processes are gone")
                    self._stopped(turn, worker)
            case Phase.CONCLUDING:
                self.concluded(f"nothing was heard of it for {CONCLUDE_BOUND_S:g} s")

    def _stop_failed(self, turn: Turn, error: types_pb2.ErrorReport) -> None:
        record = self.record
        record.error = error
        if record.is_cancelled:
            self._warn(f"while it was cancelled: {error.code}: {error.message}")
        self._stop(turn, run_pb2.RUN_STATE_CANCELLED if record.is_cancelled else run_pb2.RUN_STATE_FAILED)

    def _stop(self, turn: Turn, outcome: run_pb2.RunState) -> None:
        """The one way to an end: all children stop, then the journal is told."""
        record = self.record
        record.outcome = outcome
        saves.abandon(record, turn)
        reason = record.error.message if record.error is not None else run_pb2.RunState.Name(outcome)
        record.unstopped = turn.stop_children(record, (record.crew or record.inspector).items(), reason)
        self._enter(Phase.STOPPING, turn.now_s, STOP_BOUND_S)
        if not record.unstopped:
            self._conclude(turn)

    def _stopped(self, turn: Turn, worker: str) -> None:
        record = self.record
        if worker not in record.unstopped:
            return
        record.unstopped.discard(worker)
        if record.unstopped:
            return
        if record.phase is Phase.STOPPING:
            self._conclude(turn)
        elif record.phase is Phase.ENDING_INSPECTION:
            record.inspector = {}
            self._enter(Phase.QUEUED, turn.now_s, None)
            # Mistakes are refused now, not when the run's turn comes; missing workers may still come until then.
            self._make_plan(turn)

    def _conclude(self, turn: Turn) -> None:
        self._enter(Phase.CONCLUDING, turn.now_s, CONCLUDE_BOUND_S)
        turn.commands.append(ConcludeRun(run=ended_message(self.record, turn.now_s)))

    def _enter(self, phase: Phase, now_s: float, limit_s: float | None) -> None:
        record = self.record
        record.phase, record.phase_since_s = phase, now_s
        record.deadline_s = now_s + limit_s if limit_s is not None else None
        record.shown_state = STATES.get(phase, record.shown_state)
        record.is_changed = True

    def _warn(self, text: str) -> None:
        self.record.other_warnings.append(text)
        self.record.is_changed = True
