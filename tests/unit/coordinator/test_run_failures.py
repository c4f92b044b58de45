"""What goes wrong on the way: which failure wins, how soon, and that the queue goes on after it."""

from __future__ import annotations

import math

from pipesvc.coordinator.limits import BEAT_TIMEOUT_S, DATA_GRACE_S, ECHO_WAIT_S
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, types_pb2
from tests.unit.coordinator.coordinator_world import World, make_job, make_registration, two_workers


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


def test_p04_weights_beyond_what_a_worker_said_it_has_are_refused_before_anything_is_built() -> None:
    world = World(num_layers=4)
    world.layer_bytes = 2048
    small = make_registration("b")
    small.memory_bytes = small.memory_limit_bytes = 7 * 1024
    world.add_worker("a")
    world.add_worker("b", small)
    error = world.submit().error
    assert (world.state(), error.code) == ("FAILED", "INVALID_PLAN")
    assert "b/cpu would need 4.0 KiB weights + 4.0 KiB gradients = 8.0 KiB of 7.0 KiB" in error.message
    assert [message.start_child.assignment.role for message in world.workers["a"].commands("start_child")] == [
        types_pb2.ROLE_INSPECTOR
    ]


def test_p04_a_plain_submit_is_refused_where_only_the_state_of_the_optimizer_is_too_much() -> None:
    world = World(num_layers=4)
    world.layer_bytes = 2048
    world.state_per_gradient = 2.0  # Adam's
    small = make_registration("b")
    small.memory_bytes = small.memory_limit_bytes = 15 * 1024
    world.add_worker("a")
    world.add_worker("b", small)
    error = world.submit().error
    assert (world.state(), error.code) == ("FAILED", "INVALID_PLAN")
    assert "4.0 KiB gradients + 8.0 KiB optimizer state = 16.0 KiB of 15.0 KiB" in error.message


def test_a_real_failure_ends_the_run_at_once_with_its_place() -> None:
    world = stuck_world()
    world.fail_child("b", ErrorCode.STAGE_FAILED)
    run = world.run()
    assert world.state() == "FAILED"
    assert run.error.code == "STAGE_FAILED"
    assert (run.error.run_id, run.error.worker, run.error.host) == ("r", "b", "host-of-b")
    assert world.workers["a"].commands("stop_run")
    assert world.workers["b"].commands("stop_run")
    assert not run.has_weights


def test_an_echo_waits_for_the_real_failure() -> None:
    world = stuck_world()
    world.fail_child("a", ErrorCode.LINK_LOST, is_echo=True)
    world.pass_time(1.0)
    assert world.state() == "RUNNING"
    assert "the cause of LINK_LOST on a" in world.awaited()[0][0]
    world.fail_child("b", ErrorCode.CHILD_DIED)
    assert world.run().error.code == "CHILD_DIED"


def test_an_echo_alone_becomes_the_failure_after_its_wait() -> None:
    world = stuck_world()
    world.fail_child("a", ErrorCode.LINK_LOST, is_echo=True)
    world.pass_time(ECHO_WAIT_S + 0.2)
    assert world.state() == "FAILED"
    assert world.run().error.code == "LINK_LOST"


def test_no_step_is_issued_while_an_echo_waits() -> None:
    world = stuck_world(num_steps=9)
    world.fail_child("a", ErrorCode.LINK_LOST, is_echo=True)
    apply(world, 1)
    assert world.workers["a"].issued() == [1, 2]


def test_an_echo_waits_longer_for_a_worker_that_may_be_lost() -> None:
    world = stuck_world()
    world.break_stream("b")
    world.fail_child("a", ErrorCode.LINK_LOST, is_echo=True)
    world.pass_time(BEAT_TIMEOUT_S + 0.2)
    assert world.run().error.code == "WORKER_LOST"
    assert world.run().error.worker == "b"


def test_a_real_failure_that_comes_while_stopping_replaces_an_echo() -> None:
    world = stuck_world()
    world.workers["a"].mute.add("stopped")
    world.fail_child("a", ErrorCode.LINK_LOST, is_echo=True)
    world.pass_time(ECHO_WAIT_S + 0.2)
    world.fail_child("b", ErrorCode.STAGE_FAILED)
    world.pass_time(10)
    assert world.run().error.code == "STAGE_FAILED"
    assert "worker a did not say" in world.run().warnings[0]


def test_f19_missing_workers_are_awaited_by_name_and_then_given_up() -> None:
    world = World()
    world.submit(job=make_job(num_stages=3))
    assert world.state() == "WAITING"
    assert world.awaited() == [("a worker that can inspect the model", "any worker")]
    world.add_worker("a")
    world.add_worker("b")
    assert world.state() == "WAITING"
    assert world.awaited()[0][0].startswith("2 of 3 workers")
    world.pass_time(19)
    assert world.state() == "WAITING"
    world.pass_time(1.2)
    assert world.run().error.code == "MISSING_WORKER"
    assert "2 of 3 workers" in world.run().error.message


def test_f19_workers_that_come_later_start_the_run() -> None:
    world = World()
    world.submit(job=make_job(num_stages=3))
    world.pass_time(10)
    for name in ("a", "b", "c"):
        world.add_worker(name)
    assert world.state() == "COMPLETED"


def test_without_any_worker_the_run_fails_at_its_limit() -> None:
    world = World()
    world.submit()
    world.pass_time(20.2)
    assert world.run().error.code == "MISSING_WORKER"
    assert "no worker registered within 20 s" in world.run().error.message


def test_a_plan_that_cannot_be_is_refused_behind_a_running_run() -> None:
    world = stuck_world()
    job = make_job()
    job.strategy.placement["stage:0"] = "a/cuda:3"
    world.submit("second", job)
    assert world.state("second") == "FAILED"
    assert world.run("second").error.code == "UNKNOWN_DEVICE"
    assert world.state() == "RUNNING"


def test_an_inspector_that_fails_fails_the_run() -> None:
    world = World()
    world.add_worker("a", mute="inspected")
    world.workers["a"].mute.add("trying")
    world.submit()
    failed = types_pb2.ErrorReport(code="IMPORT_FAILED", message="no module named user")
    world.say("a", types_pb2.ROLE_INSPECTOR, local_pb2.FromChild(failed=failed))
    assert world.run().error.code == "IMPORT_FAILED"


def test_only_one_run_at_a_time_is_inspected_on_a_worker() -> None:
    world = World()
    world.add_worker("a", mute="inspected")
    world.submit("first")
    world.submit("second")
    assert world.state("first") == "INSPECTING"
    assert world.state("second") == "WAITING"
    world.pass_time(25)
    assert world.state("second") == "WAITING"


def test_building_has_a_limit_that_names_who_is_late() -> None:
    world = two_workers()
    world.workers["b"].mute.add("ready")
    world.submit()
    world.pass_time(60.2)
    assert world.run().error.code == "BUILD_TIMED_OUT"
    assert "executor on b" in world.run().error.message


def test_inspecting_has_a_limit() -> None:
    world = World()
    world.add_worker("a", mute="inspected")
    world.workers["a"].mute.add("trying")
    world.submit()
    world.pass_time(60.2)
    assert world.run().error.code == "BUILD_TIMED_OUT"
    assert "inspector on a" in world.run().error.message


def test_a_step_has_a_limit_that_names_stage_and_worker() -> None:
    world = stuck_world()
    assert world.awaited() == [("step 1", "stage 1 on b")]
    world.pass_time(40.2)
    error = world.run().error
    assert (error.code, error.stage, error.step, error.worker) == ("STEP_TIMED_OUT", 1, 1, "b")


def test_the_first_step_of_a_compiled_model_may_also_take_as_long_as_building() -> None:
    world = two_workers()
    world.workers["b"].mute.add("applied")
    job = make_job()
    job.strategy.compiles = True
    world.submit(job=job)
    world.pass_time(40.2)
    assert world.state() == "RUNNING"
    world.pass_time(60.2)
    error = world.run().error
    assert error.code == "STEP_TIMED_OUT"
    assert "within 100 s" in error.message
    assert "compile=True: compiling is part of a step" in error.message


def test_f16_a_feeder_without_a_word_has_a_limit() -> None:
    world = two_workers()
    world.workers["a"].mute |= {"batch", "end"}
    world.submit()
    assert world.awaited() == [("the batch of step 1", "feeder on a")]
    world.pass_time(29 + DATA_GRACE_S)
    assert world.state() == "RUNNING"
    world.pass_time(1.2)
    assert world.run().error.code == "DATA_SOURCE_TIMED_OUT"


def test_a_loss_that_is_not_finite_fails_when_asked_to_check() -> None:
    world = two_workers()
    world.workers["b"].mute.add("applied")
    world.submit(job=make_job(check_finite=True))
    apply(world, 1, math.nan)
    error = world.run().error
    assert (error.code, error.step) == ("NON_FINITE_LOSS", 1)


def test_reports_that_contradict_the_steps_fail_the_run() -> None:
    world = stuck_world()
    apply(world, 2)
    assert world.run().error.code == "INTERNAL"
    assert "stage 1 reports step 2" in world.run().error.message


def test_f24_the_queue_goes_on_after_a_failure() -> None:
    world = stuck_world()
    world.submit("second")
    world.workers["b"].mute.clear()
    world.fail_child("a", ErrorCode.STAGE_FAILED)
    assert world.state() == "FAILED"
    assert world.state("second") == "COMPLETED"


def test_a_run_ends_though_a_worker_does_not_say_that_it_has_stopped() -> None:
    world = stuck_world()
    world.workers["a"].mute.add("stopped")
    world.fail_child("b", ErrorCode.STAGE_FAILED)
    assert world.state() == "RUNNING"
    assert world.awaited() == [("the end of the run's processes", "a")]
    world.pass_time(8.2)
    assert world.state() == "FAILED"
