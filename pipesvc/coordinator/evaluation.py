"""When a run is evaluated, and how the batches of an evaluation become one record.

An evaluation lies between two steps: training waits until all stages have applied the step before, so they all have its
weights, and a stage never has parcels of a step and of an evaluation at once. The passes of one evaluation are counted
like the steps of a run, so the same ledger holds them to their order and their window.

The loss of a batch is that of a step: the losses of its micro-batches by their shares. The evaluation's is the mean of
these over the batches, each by the sum of its weights, which are rows unless the job says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipesvc.coordinator.events import RecordEvaluation
from pipesvc.coordinator.failures import no_batch, step_timed_out
from pipesvc.coordinator.limits import DATA_GRACE_S
from pipesvc.coordinator.run_record import RunRecord
from pipesvc.coordinator.step_ledger import StepLedger
from pipesvc.coordinator.turn import Turn
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, types_pb2


@dataclass(kw_only=True, slots=True)
class Evaluation:
    """One that is under way. `sums` are those of the loss and of the metrics, in the order of the job."""

    after_step: int
    epoch: int
    passes: StepLedger
    sums: list[float]
    weight: float = 0.0
    num_rows: int = 0
    _weights: dict[int, float] = field(default_factory=dict)
    _metrics: dict[int, list[float]] = field(default_factory=dict)

    def announce(self, batch: local_pb2.BatchAnnounced) -> None:
        self.passes.announce(batch)
        self._weights[batch.step] = batch.weight

    def apply(self, report: local_pb2.StepApplied, now_s: float) -> None:
        """A stage has done its part of a batch; with the last of them the batch counts."""
        if report.HasField("loss"):
            self._metrics[report.step] = list(report.metrics)
        done = self.passes.apply(report, now_s)
        if done is None:
            return
        weight, values = self._weights.pop(done.step), [done.loss, *self._metrics.pop(done.step)]
        if len(values) != len(self.sums):
            message = f"{len(values) - 1} metrics came of batch {done.step}, and the job has {len(self.sums) - 1}"
            raise PipesvcError(ErrorCode.INTERNAL, message, where=Where(step=self.after_step))
        self.num_rows += done.num_rows
        if weight:
            self.weight += weight
            self.sums = [total + value * weight for total, value in zip(self.sums, values, strict=True)]

    def record(self, names: list[str], now_s: float) -> run_pb2.EvaluationRecord:
        if not self.weight:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"the weights of all {self.num_rows} rows of the evaluation data are 0",
                advice="An evaluation is a mean over weight(labels), which needs a row that counts",
                where=Where(step=self.after_step),
            )
        loss, *metrics = (total / self.weight for total in self.sums)
        return run_pb2.EvaluationRecord(
            step=self.after_step,
            epoch=self.epoch,
            loss=loss,
            metrics=[run_pb2.MetricValue(name=name, value=value) for name, value in zip(names, metrics, strict=True)],
            num_rows=self.num_rows,
            evaluated_unix_ns=int(now_s * 1e9),
        )


def holds(record: RunRecord, turn: Turn) -> bool:
    """Whether training waits for an evaluation: begins the one that is due, and lets it go on."""
    ledger = record.ledger
    assert ledger is not None
    if record.evaluation is None:
        if not _is_due(record.job, ledger, record.evaluated_step):
            return False
        if ledger.is_drained:
            _begin(record, turn, ledger)
    if (evaluation := record.evaluation) is not None:
        while (batch := evaluation.passes.issue(turn.now_s)) is not None:
            turn.issue(record, batch, local_pb2.PASS_KIND_EVALUATION, evaluation.after_step)
    return True


def take(record: RunRecord, turn: Turn, report: local_pb2.FromChild) -> None:
    """What a stage or the feeder reports of an evaluation; of one that was given up, it is no news."""
    evaluation = record.evaluation
    if evaluation is None:
        return
    match report.WhichOneof("message"):
        case "batch_announced":
            evaluation.announce(report.batch_announced)
        case "data_ended":
            evaluation.passes.end(report.data_ended.num_steps)
        case "step_applied":
            evaluation.apply(report.step_applied, turn.now_s)
            if report.step_applied.metric_warnings:
                record.other_warnings.extend(report.step_applied.metric_warnings)
                record.is_changed = True
    if evaluation.passes.is_complete:
        found = evaluation.record([metric.name for metric in record.job.evaluation.metrics], turn.now_s)
        turn.commands.append(RecordEvaluation(run_id=record.run_id, record=found))
        record.evaluation, record.evaluated_step, record.is_changed = None, evaluation.after_step, True
        if record.ledger is not None:
            record.ledger.begin(turn.now_s)


def data_limit_s(job: job_pb2.JobSpec) -> float:
    """For one batch. The evaluation data waits for a batch that the training data is about to give."""
    return job.evaluation.data.timeout_s + job.data.timeout_s + DATA_GRACE_S


def overdue(record: RunRecord, turn: Turn) -> types_pb2.ErrorReport | None:
    """The failure of the run, if the evaluation does not go on."""
    evaluation, plan, job = record.evaluation, record.plan, record.job
    assert evaluation is not None
    assert plan is not None
    passes, step = evaluation.passes, evaluation.after_step
    waited_s = turn.now_s - passes.since_s
    batch = f"batch {passes.committed + 1} of the evaluation after step {step}"
    if passes.is_hungry and waited_s >= data_limit_s(job):
        return no_batch(batch, job.evaluation.data.timeout_s, plan.feeder_worker, step)
    if not passes.is_drained and waited_s >= job.step_timeout_s:
        late = [(stage, plan.stages[stage].worker) for stage in passes.lagging_stages]
        return step_timed_out(f"{batch} was not computed", record, late, step)
    return None


def _is_due(job: job_pb2.JobSpec, ledger: StepLedger, evaluated_step: int) -> bool:
    """Whether the weights after the last issued step are to be evaluated."""
    if not job.HasField("evaluation") or ledger.issued <= max(evaluated_step, ledger.start.step):
        return False
    if ledger.issued == ledger.num_steps:
        return True
    if job.evaluation.every_steps:
        return ledger.issued % job.evaluation.every_steps == 0
    return ledger.is_epoch_over


def _begin(record: RunRecord, turn: Turn, ledger: StepLedger) -> None:
    passes = StepLedger(len(ledger.applied))
    passes.begin(turn.now_s)
    record.evaluation = Evaluation(
        after_step=ledger.committed,
        epoch=ledger.epoch,
        passes=passes,
        sums=[0.0] * (1 + len(record.job.evaluation.metrics)),
    )
    record.is_changed = True
    begin = local_pb2.BeginEvaluation(after_step=ledger.committed)
    turn.to_feeder(record, local_pb2.ToChild(begin_evaluation=begin))
