"""Workers that come, fall silent, come back, drain, or are not who they say."""

from __future__ import annotations

import pytest

from pipesvc.coordinator import events
from pipesvc.coordinator.limits import BEAT_TIMEOUT_S, MAX_INSPECTIONS
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from tests.unit.coordinator.coordinator_world import World, make_registration, two_workers


def stuck_world(**settings: int) -> World:
    """A run that waits for the updates of stage 1."""
    world = two_workers(**settings)
    world.workers["b"].mute.add("applied")
    world.submit()
    assert world.state() == "RUNNING"
    return world


def apply(world: World, step: int, loss: float = 1.0) -> None:
    applied = local_pb2.StepApplied(step=step, stage=1, loss=loss)
    world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=applied))


@pytest.mark.parametrize("is_stream_broken", [True, False])
def test_f03_a_silent_worker_is_lost_within_the_beat_timeout(is_stream_broken: bool) -> None:
    world = stuck_world()
    world.pass_time(1.0)
    if is_stream_broken:
        world.break_stream("b")
    else:
        world.workers["b"].beats = False
    world.pass_time(BEAT_TIMEOUT_S - 0.5)
    assert world.state() == "RUNNING"
    world.pass_time(1.0)
    error = world.run().error
    assert world.state() == "FAILED"
    assert (error.code, error.worker, error.host, error.step) == ("WORKER_LOST", "b", "host-of-b", 1)
    ended = [command for command in world.commands if isinstance(command, events.EndSession)]
    assert len(ended) == (0 if is_stream_broken else 1)


def test_a_worker_that_comes_back_in_time_goes_on() -> None:
    world = stuck_world()
    world.break_stream("b")
    world.pass_time(2.0)
    world.workers["b"].session = 99
    world.workers["b"].beats = True
    world.tell(events.WorkerAttached(session=99, registration=world.workers["b"].registration))
    for step in (1, 2, 3):
        apply(world, step)
    assert world.state() == "COMPLETED"


def test_f08_a_new_incarnation_of_a_worker_ends_the_run_of_the_old_one() -> None:
    world = stuck_world()
    old_session = world.workers["b"].session
    world.break_stream("b")
    world.add_worker("b", make_registration("b", incarnation="2"))
    assert world.run().error.code == "WORKER_LOST"
    assert "started anew" in world.run().error.message
    world.submit("next")
    assert world.state("next") == "COMPLETED"
    beat = worker_pb2.AttachRequest(beat=worker_pb2.Beat())
    assert world.machine.handle(events.WorkerSpoke(session=old_session, message=beat), world.now_s) == []


def test_a_second_worker_of_a_name_is_refused_while_the_first_is_alive() -> None:
    world = two_workers()
    newcomer = events.WorkerAttached(session=9, registration=make_registration("a", incarnation="2"))
    with pytest.raises(PipesvcError) as caught:
        world.machine.handle(newcomer, world.now_s)
    assert caught.value.code == ErrorCode.WORKER_NAME_TAKEN
    assert [member.incarnation for member in world.machine.fleet.members] == ["a/1", "b/1"]


def test_w04_another_wire_version_is_refused_with_both_versions() -> None:
    world = World()
    registration = make_registration("a")
    registration.versions.wire = 9
    with pytest.raises(PipesvcError, match="wire version 9, the coordinator 1") as caught:
        world.machine.handle(events.WorkerAttached(session=1, registration=registration), world.now_s)
    assert caught.value.code == ErrorCode.WIRE_MISMATCH


def test_children_of_a_run_that_has_given_the_worker_up_are_stopped() -> None:
    world = stuck_world()
    world.break_stream("b")
    world.pass_time(4)
    worker = world.add_worker("b", world.workers["b"].registration)
    children = [worker_pb2.ChildProgress(run_id="r", role=types_pb2.ROLE_EXECUTOR)]
    world.speak("b", worker_pb2.AttachRequest(beat=worker_pb2.Beat(children=children)))
    assert [message.stop_run.run_id for message in worker.commands("stop_run")] == ["r"]


def test_a_worker_lost_while_it_inspects_is_replaced_a_few_times() -> None:
    world = World()
    for number in range(MAX_INSPECTIONS):
        world.add_worker(f"w{number}", mute="inspected")
        if not number:
            world.submit()
        assert world.state() == "INSPECTING"
        world.break_stream(f"w{number}")
        world.pass_time(3.2)
    assert world.run().error.code == "WORKER_LOST"


def test_a_worker_that_ends_its_children_unasked_fails_the_run() -> None:
    world = stuck_world()
    world.speak("b", worker_pb2.AttachRequest(run_stopped=worker_pb2.RunStopped(run_id="r")))
    assert world.run().error.code == "CHILD_DIED"


def test_reports_of_workers_outside_the_plan_are_ignored() -> None:
    world = stuck_world()
    world.add_worker("c")
    world.fail_child("c", ErrorCode.STAGE_FAILED)
    assert world.state() == "RUNNING"


def test_a_draining_worker_ends_its_run_and_gets_nothing_new() -> None:
    world = stuck_world()
    world.speak("b", worker_pb2.AttachRequest(draining=True))
    for step in (1, 2, 3):
        apply(world, step)
    assert world.state() == "COMPLETED"
    world.submit("next")
    assert world.state("next") == "COMPLETED"
    assert world.run("next").stage_steps == [3]
