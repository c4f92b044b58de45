"""Evaluations between the steps of a run: when they come, what they hold up, and how they end."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipesvc.coordinator import events
from pipesvc.coordinator.limits import DATA_GRACE_S
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, types_pb2, worker_pb2
from tests.unit.coordinator.coordinator_world import SimulatedWorker, World, make_job

EVALUATION = local_pb2.PASS_KIND_EVALUATION
# Weight, rows, loss and metric of each batch of the evaluation data.
BATCHES = ((2.0, 2, 1.0, 0.5), (0.0, 2, math.nan, math.nan), (6.0, 6, 2.0, 0.25))


class EvaluatingWorld(World):
    """Its feeder has evaluation data, its stages compute them, and it notes the order of what is issued."""

    def __init__(self, *, batches: tuple[tuple[float, int, float, float], ...] = BATCHES, **settings: Any) -> None:
        super().__init__(**settings)
        self.batches = batches
        self.epochs: dict[int, int] = {}
        self.issued: list[str] = []
        self.metric_warnings: list[str] = []
        self.add_worker("a")
        self.add_worker("b")

    def _obey(self, worker: SimulatedWorker, to_run: worker_pb2.ToRun) -> None:
        message, run_id, role = to_run.message, to_run.run_id, to_run.role
        if message.HasField("begin_evaluation"):
            for number, (weight, rows, _, _) in enumerate(self.batches, 1):
                batch = local_pb2.BatchAnnounced(step=number, shares=[1.0], rows=[rows], weight=weight, kind=EVALUATION)
                self._report(worker, run_id, role, "evaluation batch", local_pb2.FromChild(batch_announced=batch))
            ended = local_pb2.DataEnded(num_steps=len(self.batches), kind=EVALUATION)
            self._report(worker, run_id, role, "evaluation end", local_pb2.FromChild(data_ended=ended))
        elif message.issue_step.kind == EVALUATION:
            if role == types_pb2.ROLE_EXECUTOR:
                self._compute(worker, to_run)
        else:
            if role == types_pb2.ROLE_FEEDER and message.HasField("issue_step"):
                self.issued.append(f"step {message.issue_step.step}")
            super()._obey(worker, to_run)

    def _compute(self, worker: SimulatedWorker, to_run: worker_pb2.ToRun) -> None:
        assert worker.plan is not None
        issue = to_run.message.issue_step
        for stage in worker.plan.stages_of(worker.name):
            applied = local_pb2.StepApplied(step=issue.step, stage=stage.index, kind=EVALUATION)
            if stage.index == worker.plan.num_stages - 1:
                self.issued.append(f"batch {issue.step} after {issue.after_step}")
                _, _, applied.loss, metric = self.batches[issue.step - 1]
                applied.metrics.append(metric)
                applied.metric_warnings.extend(self.metric_warnings)
                self.metric_warnings.clear()
            self._report(worker, to_run.run_id, to_run.role, "evaluated", local_pb2.FromChild(step_applied=applied))

    def _report(
        self, worker: SimulatedWorker, run_id: str, role: types_pb2.Role, kind: str, report: local_pb2.FromChild
    ) -> None:
        if kind == "batch":
            report.batch_announced.epoch = self.epochs.get(report.batch_announced.step, 0)
        super()._report(worker, run_id, role, kind, report)

    def _note_applied(self, event: events.WorkerSpoke) -> None:
        if event.message.child_report.report.step_applied.kind != EVALUATION:
            super()._note_applied(event)

    def evaluations(self) -> list[run_pb2.EvaluationRecord]:
        return [command.record for command in self.commands if isinstance(command, events.RecordEvaluation)]


def evaluated_job(*, every_steps: int = 0) -> job_pb2.JobSpec:
    job = make_job()
    job.evaluation.data.CopyFrom(job.data)
    job.evaluation.data.timeout_s = 5
    job.evaluation.micro_batches = 2
    job.evaluation.every_steps = every_steps
    job.evaluation.metrics.add(name="accuracy").call.target = "user.model:accuracy"
    return job


def test_each_epoch_and_the_last_step_are_followed_by_one_evaluation() -> None:
    world = EvaluatingWorld(num_steps=5)
    world.epochs = {3: 1, 4: 1, 5: 2}
    world.submit(job=evaluated_job())
    passes = [[f"batch {number} after {step}" for number in (1, 2, 3)] for step in (2, 4, 5)]
    assert world.issued == ["step 1", "step 2", *passes[0], "step 3", "step 4", *passes[1], "step 5", *passes[2]]
    assert [(record.step, record.epoch) for record in world.evaluations()] == [(2, 0), (4, 1), (5, 2)]
    assert world.run().evaluated_step == 5
    assert world.state() == "COMPLETED"


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_evaluations_come_after_so_many_steps(every: int, steps: list[int]) -> None:
    world = EvaluatingWorld(num_steps=5)
    world.submit(job=evaluated_job(every_steps=every))
    assert [record.step for record in world.evaluations()] == steps
    assert [each for each in world.issued if each.startswith("step")] == [f"step {step}" for step in range(1, 6)]


def test_loss_and_metrics_are_means_over_the_weights_of_the_batches() -> None:
    world = EvaluatingWorld(num_steps=1)
    world.submit(job=evaluated_job())
    [record] = world.evaluations()
    assert record.loss == (1.0 * 2 + 2.0 * 6) / 8
    assert [(metric.name, metric.value) for metric in record.metrics] == [("accuracy", (0.5 * 2 + 0.25 * 6) / 8)]
    assert record.num_rows == 10


def test_rows_that_all_weigh_nothing_have_no_mean() -> None:
    world = EvaluatingWorld(num_steps=1, batches=((0.0, 4, 0.0, 0.0),))
    world.submit(job=evaluated_job())
    assert world.state() == "FAILED"
    assert "the weights of all 4 rows of the evaluation data are 0" in world.run().error.message
    assert world.run().error.step == 1


def test_training_waits_until_all_stages_have_applied_the_step_before() -> None:
    world = EvaluatingWorld(num_steps=4)
    world.workers["a"].mute.add("applied")
    world.submit(job=evaluated_job(every_steps=1))
    assert world.issued == ["step 1"]
    applied = local_pb2.FromChild(step_applied=local_pb2.StepApplied(step=1, stage=0))
    world.say("a", types_pb2.ROLE_EXECUTOR, applied)
    assert world.issued[1:4] == ["batch 1 after 1", "batch 2 after 1", "batch 3 after 1"]


def test_a_stage_that_hangs_in_an_evaluation_is_named() -> None:
    world = EvaluatingWorld(num_steps=2)
    world.workers["a"].mute.add("evaluated")
    world.submit(job=evaluated_job(every_steps=1))
    assert world.awaited() == [("batch 1 of the evaluation after step 1", "stage 0 on a")]
    world.pass_time(39)
    assert world.state() == "RUNNING"
    world.pass_time(2)
    assert world.state() == "FAILED"
    error = world.run().error
    assert error.code == "STEP_TIMED_OUT"
    assert "batch 1 of the evaluation after step 1 was not computed within 40 s by stage 0 on a" in error.message


def test_a_feeder_that_keeps_silent_in_an_evaluation_is_named() -> None:
    """Its source waits for a batch that the training data may be about to give."""
    world = EvaluatingWorld(num_steps=2)
    world.workers["a"].mute.add("evaluation batch")
    world.workers["a"].mute.add("evaluation end")
    world.submit(job=evaluated_job(every_steps=1))
    assert world.awaited() == [("batch 1 of the evaluation after step 1", "feeder on a")]
    limit_s = 5 + 30 + DATA_GRACE_S
    world.pass_time(limit_s - 1)
    assert world.state() == "RUNNING"
    world.pass_time(2)
    assert world.run().error.code == "DATA_SOURCE_TIMED_OUT"


def test_a_cancelled_run_does_not_wait_for_its_evaluation() -> None:
    world = EvaluatingWorld(num_steps=4)
    world.workers["b"].mute.add("evaluated")
    world.submit(job=evaluated_job(every_steps=2))
    assert world.state() == "RUNNING"
    world.tell(events.RunCancelled(run_id="r"))
    assert world.state() == "CANCELLED"
    assert world.run().has_weights
    assert world.evaluations() == []


def test_a_late_word_of_an_evaluation_that_was_given_up_changes_nothing() -> None:
    world = EvaluatingWorld(num_steps=4)
    world.workers["b"].mute.update({"evaluated", "shard"})
    world.submit(job=evaluated_job(every_steps=2))
    world.tell(events.RunCancelled(run_id="r"))
    late = local_pb2.StepApplied(step=1, stage=1, kind=EVALUATION, loss=1.0, metrics=[1.0])
    world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=late))
    assert world.state() == "SAVING"


def test_a_report_that_contradicts_the_evaluation_ends_the_run() -> None:
    world = EvaluatingWorld(num_steps=1)
    world.workers["b"].mute.add("evaluated")
    world.submit(job=evaluated_job())
    wrong = local_pb2.StepApplied(step=1, stage=1, kind=EVALUATION, loss=1.0)
    world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=wrong))
    assert world.state() == "FAILED"
    assert "0 metrics came of batch 1, and the job has 1" in world.run().error.message


def test_a_metric_that_fails_warns_and_the_run_goes_on_to_its_weights() -> None:
    world = EvaluatingWorld(num_steps=2, batches=((2.0, 2, 1.0, math.nan),))
    world.metric_warnings.append("the metric 'accuracy' met something")
    world.submit(job=evaluated_job(every_steps=1))
    assert [record.metrics[0].value for record in world.evaluations()] == [pytest.approx(math.nan, nan_ok=True)] * 2
    assert [record.loss for record in world.evaluations()] == [1.0, 1.0]
    assert list(world.run().warnings) == ["the metric 'accuracy' met something"]
    assert world.state() == "COMPLETED"
    assert world.run().has_weights
