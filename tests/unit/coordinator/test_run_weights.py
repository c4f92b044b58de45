"""Cancelling, and the state of the model: live, final, late and never."""

from __future__ import annotations

from pipesvc.coordinator import events
from pipesvc.coordinator.limits import CANCEL_BOUND_S, SAVE_IDLE_S
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, types_pb2
from tests.unit.coordinator.coordinator_world import World, two_workers


def running_world(num_steps: int = 9) -> World:
    """Steps 1 and 2 are issued and wait for stage 1."""
    world = two_workers(num_steps=num_steps)
    world.workers["b"].mute.add("applied")
    world.submit()
    return world


def apply(world: World, *steps: int) -> None:
    for step in steps:
        applied = local_pb2.StepApplied(step=step, stage=1, loss=1.0)
        world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=applied))


def ask(world: World, ticket: int) -> None:
    world.tell(events.WeightsAsked(run_id="r", ticket=ticket))


def saves_asked_of(world: World, worker: str) -> list[int]:
    return [
        message.to_run.message.save_state.step
        for message in world.workers[worker].commands("to_run")
        if message.to_run.message.HasField("save_state")
    ]


def test_a_cancelled_run_commits_what_was_issued_and_keeps_its_weights() -> None:
    world = running_world()
    world.tell(events.RunCancelled(run_id="r"))
    assert world.state() == "RUNNING"
    apply(world, 1, 2)
    run = world.run()
    assert world.state() == "CANCELLED"
    assert run.num_committed_steps == 2
    assert run.has_weights
    assert not run.HasField("error")
    assert world.workers["a"].issued() == [1, 2]


def test_a_cancel_that_takes_too_long_ends_without_weights() -> None:
    world = running_world()
    world.tell(events.RunCancelled(run_id="r"))
    world.pass_time(CANCEL_BOUND_S - 1)
    assert world.state() == "RUNNING"
    world.pass_time(1.2)
    assert world.state() == "CANCELLED"
    assert not world.run().has_weights
    assert "without weights" in world.run().warnings[0]


def test_a_cancel_before_the_first_step_ends_at_once() -> None:
    world = two_workers()
    world.workers["b"].mute.add("ready")
    world.submit()
    world.tell(events.RunCancelled(run_id="r"))
    assert world.state() == "CANCELLED"
    waiting = World()
    waiting.submit()
    waiting.tell(events.RunCancelled(run_id="r"))
    assert waiting.state() == "CANCELLED"


def test_a_cancel_while_the_data_is_awaited_ends_with_the_weights_so_far() -> None:
    world = two_workers(num_steps=2)
    world.workers["a"].mute.add("end")
    world.submit()
    assert world.state() == "RUNNING"
    assert world.run().num_committed_steps == 2
    world.tell(events.RunCancelled(run_id="r"))
    assert world.state() == "CANCELLED"
    assert world.run().has_weights


def test_a_failure_while_cancelling_is_a_warning() -> None:
    world = running_world()
    world.tell(events.RunCancelled(run_id="r"))
    world.fail_child("b", ErrorCode.STAGE_FAILED)
    assert world.state() == "CANCELLED"
    assert "STAGE_FAILED" in world.run().warnings[0]


def test_live_weights_are_of_the_next_step_that_is_not_issued() -> None:
    world = running_world()
    ask(world, 1)
    ask(world, 2)
    assert saves_asked_of(world, "a") == [3]
    apply(world, 1)
    ask(world, 3)
    assert saves_asked_of(world, "a") == [3, 4]
    kinds = [
        message.to_run.message.WhichOneof("message")
        for message in world.workers["a"].commands("to_run")
        if message.to_run.role == types_pb2.ROLE_EXECUTOR
    ]
    assert kinds == ["issue_step", "issue_step", "save_state", "issue_step", "save_state"]
    apply(world, 2, 3)
    answers = [(answer.ticket, answer.step, answer.is_final) for answer in world.answers()]
    assert answers == [(1, 3, False), (2, 3, False)]
    assert world.state() == "RUNNING"
    assert events.DropWeights(run_id="r", step=3) in world.commands


def test_a_live_state_beyond_the_last_step_is_the_final_one() -> None:
    world = running_world(num_steps=2)
    world.workers["a"].mute.add("end")
    ask(world, 1)
    apply(world, 1, 2)
    (answer,) = world.answers()
    assert (answer.step, answer.is_final, answer.error) == (2, True, None)
    assert world.state() == "COMPLETED"
    ask(world, 5)
    assert world.answers()[-1] == events.AnswerWeights(ticket=5, run_id="r", step=2)


def test_a_live_state_of_the_last_step_is_not_asked_for_twice() -> None:
    world = running_world(num_steps=3)
    for worker in world.workers.values():
        worker.mute.add("shard")
    ask(world, 1)
    apply(world, 1, 2, 3)
    assert world.state() == "SAVING"
    assert saves_asked_of(world, "a") == [3]
    for stage, name in enumerate("ab"):
        world.tell(world.shard(name, 3, stage))
    assert world.state() == "COMPLETED"
    assert world.answers() == [events.AnswerWeights(ticket=1, run_id="r", step=3)]


def test_weights_of_a_run_that_does_not_run_yet_are_refused_by_name() -> None:
    world = World()
    world.submit()
    ask(world, 1)
    error = world.answers()[0].error
    assert error is not None
    assert error.code == "WEIGHTS_NOT_READY"


def test_those_who_wait_for_weights_hear_of_the_failure() -> None:
    world = running_world()
    ask(world, 1)
    world.fail_child("b", ErrorCode.STAGE_FAILED)
    error = world.answers()[0].error
    assert error is not None
    assert error.code == "STAGE_FAILED"
    ask(world, 2)
    late = world.answers()[1].error
    assert late is not None
    assert late.code == "WEIGHTS_NOT_READY"


def test_saving_is_given_up_when_nothing_moves_and_not_before() -> None:
    world = two_workers(num_steps=2)
    world.workers["b"].mute.add("shard")
    world.submit()
    assert world.state() == "SAVING"
    assert world.awaited() == [("more of its weights", "stage 1 on b")]
    world.pass_time(SAVE_IDLE_S - 1)
    world.tell(world.shard("b", 2, 1, is_whole=False))
    world.pass_time(SAVE_IDLE_S - 1)
    assert world.state() == "SAVING"
    world.pass_time(1.2)
    assert world.run().error.code == "TIMED_OUT"
    assert "stage 1 on b" in world.run().error.message


def test_weights_that_cannot_be_stored_fail_the_run() -> None:
    world = two_workers()
    world.holds_merges = True
    world.submit()
    assert world.state() == "SAVING"
    world.tell(events.WeightsMerged(run_id="r", step=3, problem="the disk is full"))
    assert world.state() == "FAILED"
    assert "the disk is full" in world.run().error.message


def test_f07_a_worker_lost_after_its_weights_have_come_does_not_fail_the_run() -> None:
    world = two_workers()
    world.holds_merges = True
    world.submit()
    world.break_stream("b")
    world.pass_time(4)
    assert world.state() == "SAVING"
    world.tell(events.WeightsMerged(run_id="r", step=3))
    assert world.state() == "COMPLETED"
    assert world.run().has_weights
