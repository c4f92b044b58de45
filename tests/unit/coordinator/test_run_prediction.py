"""Predictions in the life of a run: the reader sets the pace, and a reader that is gone ends it."""

from __future__ import annotations

from pipesvc.coordinator import events
from pipesvc.coordinator.limits import READER_BOUND_S, WINDOW_OUTPUTS
from pipesvc.coordinator.output_events import DropOutputs, FilesFailed, OutputsTaken, ReaderCame, ReaderWent
from pipesvc.rpc.v1 import job_pb2, local_pb2
from tests.unit.coordinator.coordinator_world import World, make_job, two_workers


def prediction() -> job_pb2.JobSpec:
    job = make_job()
    job.is_prediction = True
    job.ClearField("optimizer")
    return job


def begun(num_steps: int = 10) -> World:
    world = two_workers(num_steps=num_steps)
    world.submit(job=prediction())
    world.tell(ReaderCame(run_id="r"))
    return world


def dropped(world: World) -> list[int]:
    return [command.step for command in world.commands if isinstance(command, DropOutputs)]


def test_a_run_goes_no_further_ahead_of_its_reader_than_the_window() -> None:
    world = begun()
    assert world.run().num_committed_steps == WINDOW_OUTPUTS
    world.pass_time(1000)
    assert world.state() == "RUNNING"
    assert world.run().num_committed_steps == WINDOW_OUTPUTS
    assert world.awaited() == [("word that the outputs of batch 1 are read", "the client")]
    world.tell(OutputsTaken(run_id="r", step=2))
    assert world.run().num_committed_steps == WINDOW_OUTPUTS + 2
    assert dropped(world) == [1, 2]


def test_it_is_completed_when_the_reader_has_everything_and_nothing_is_saved() -> None:
    world = begun(num_steps=3)
    assert world.run().num_committed_steps == 3
    assert world.run().is_prediction
    assert world.state() == "RUNNING"
    for step in (1, 2, 3):
        world.tell(OutputsTaken(run_id="r", step=step))
    assert world.state() == "COMPLETED"
    assert not world.run().has_weights
    assert dropped(world) == [1, 2, 3]
    kinds = {
        message.to_run.message.issue_step.kind
        for message in world.workers["a"].commands("to_run")
        if message.to_run.message.HasField("issue_step")
    }
    assert kinds == {local_pb2.PASS_KIND_PREDICTION}


def test_what_the_reader_cannot_have_is_not_taken() -> None:
    world = begun()
    world.tell(OutputsTaken(run_id="r", step=1000))
    world.tell(OutputsTaken(run_id="r", step=1))
    assert dropped(world) == [1, 2, 3, 4]
    assert world.run().num_committed_steps == 2 * WINDOW_OUTPUTS


def test_a_reader_that_is_gone_ends_the_run_and_one_that_comes_back_does_not() -> None:
    world = begun()
    world.tell(ReaderWent(run_id="r"))
    world.pass_time(READER_BOUND_S - 1)
    world.tell(ReaderCame(run_id="r"))
    world.pass_time(2 * READER_BOUND_S)
    assert world.state() == "RUNNING"
    world.tell(ReaderWent(run_id="r"))
    world.pass_time(READER_BOUND_S + 1)
    assert world.state() == "CANCELLED"
    assert "nobody has been reading the outputs" in world.run().warnings[-1]


def test_outputs_that_cannot_be_stored_end_the_run() -> None:
    world = begun()
    world.tell(FilesFailed(run_id="r", problem="the outputs of batch 2 could not be stored: disk full"))
    assert world.state() == "FAILED"
    assert "disk full" in world.run().error.message


def test_a_prediction_is_cancelled_without_weights() -> None:
    world = begun()
    world.tell(events.WeightsAsked(run_id="r", ticket=1))
    [answer] = world.answers()
    assert answer.error is not None
    assert "is a prediction" in answer.error.message
    world.tell(events.RunCancelled(run_id="r"))
    assert world.state() == "CANCELLED"
    assert not world.run().has_weights
