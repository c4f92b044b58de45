"""A run from submission to its end, in the order in which it should happen."""

from __future__ import annotations

import pytest

from pipesvc.coordinator import events
from pipesvc.core.memory import slot_parcels
from pipesvc.core.plan import Plan
from pipesvc.core.planner import dry_run
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from tests.unit.coordinator.coordinator_world import World, make_job, make_registration, two_workers


def test_a_run_goes_from_submission_to_completed() -> None:
    world = two_workers(num_steps=3)
    world.submit()
    run = world.run()
    assert world.state() == "COMPLETED"
    assert run.num_committed_steps == run.num_steps == 3
    assert list(run.stage_steps) == [3, 3]
    assert run.has_weights
    assert [(record.step, record.loss, record.num_rows) for record in world.steps()] == [
        (1, 1.0, 8),
        (2, 0.5, 8),
        (3, pytest.approx(1 / 3), 8),
    ]
    assert not run.awaited
    assert run.ended_unix_ns > 0


def test_the_states_come_in_order() -> None:
    world = two_workers()
    world.submit()
    states = [command.run.state for command in world.commands if isinstance(command, events.PublishRun)]
    assert states == sorted(states, key=[2, 3, 1, 4, 5, 6, 7].index)
    assert states[-1] == 7


def test_weights_are_kept_before_the_run_is_concluded_and_the_journal_is_told_before_anybody() -> None:
    world = two_workers()
    world.holds_conclusions = True
    world.submit()
    kinds = [type(command).__name__ for command in world.commands]
    assert kinds.index("KeepWeights") < kinds.index("ConcludeRun")
    assert world.state() == "SAVING"
    world.tell(events.RunConcluded(run_id="r"))
    assert world.state() == "COMPLETED"


def test_a_journal_that_fails_is_said_and_does_not_hold_up_the_end() -> None:
    world = two_workers()
    world.holds_conclusions = True
    world.submit()
    world.tell(events.RunConcluded(run_id="r", problem="the disk is full"))
    assert world.state() == "COMPLETED"
    assert "the disk is full" in world.run().warnings[-1]


def test_every_child_gets_its_plan_the_addresses_and_the_secret() -> None:
    world = two_workers()
    world.submit(job=make_job(micro_batches=8))
    starts = [message.start_child for message in world.workers["a"].commands("start_child")]
    roles = [start.assignment.role for start in starts]
    assert roles == [types_pb2.ROLE_INSPECTOR, types_pb2.ROLE_EXECUTOR, types_pb2.ROLE_FEEDER]
    executor = starts[1]
    assert dict(executor.addresses) == {0: "a:7000", 1: "b:7000", -1: "a:7000"}
    assert executor.link_token == "secret"
    assert executor.window_parcels == 2
    assert executor.assignment.term == 7
    assert executor.assignment.host == "host-of-a"
    assert executor.assignment.num_threads == 2
    assert not starts[0].assignment.plan_json


@pytest.mark.parametrize(("schedule", "in_flight", "window"), [("naive", 0, 2), ("GPipe", 0, 8), ("1F1B", 5, 5)])
def test_f10_the_credit_of_links_is_what_the_memory_of_the_plan_counts(
    schedule: str, in_flight: int, window: int
) -> None:
    """A receiver holds no more than its sender has alive, so a window of the most that any stage has costs nothing."""
    world = two_workers()
    job = make_job(micro_batches=8)
    job.strategy.schedule, job.strategy.in_flight = schedule, in_flight
    world.submit(job=job)
    [start] = [
        message.start_child
        for message in world.workers["a"].commands("start_child")
        if message.start_child.assignment.role == types_pb2.ROLE_EXECUTOR
    ]
    assert start.window_parcels == window
    alive = dry_run(Plan.from_json(start.assignment.plan_json))
    assert max(slot_parcels(each) for each in alive.values()) == window


def test_steps_are_issued_in_a_window_of_two() -> None:
    world = two_workers(num_steps=5)
    world.workers["b"].mute.add("applied")
    world.submit()
    assert world.workers["a"].issued() == [1, 2]
    assert world.run().num_committed_steps == 0
    assert list(world.run().stage_steps) == [2, 0]
    applied = local_pb2.StepApplied(step=1, stage=1, loss=0.25)
    world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=applied))
    assert world.workers["a"].issued() == [1, 2, 3]
    assert world.run().num_committed_steps == 1


def test_the_feeder_may_announce_before_the_executors_are_ready() -> None:
    world = two_workers()
    world.workers["b"].mute.add("ready")
    world.submit()
    assert world.state() == "BUILDING"
    assert world.awaited() == [("ready", "executor on b")]
    world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(ready=local_pb2.Ready(fingerprint="f")))
    assert world.state() == "COMPLETED"


def test_the_feeder_hears_of_every_committed_step() -> None:
    world = two_workers(num_steps=3)
    world.submit()
    committed = [
        message.to_run.message.step_committed.step
        for message in world.workers["a"].commands("to_run")
        if message.to_run.message.HasField("step_committed")
    ]
    assert committed == [1, 2, 3]


def test_an_empty_source_completes_with_the_initial_weights() -> None:
    world = two_workers(num_steps=0)
    world.submit()
    assert world.state() == "COMPLETED"
    assert world.run().has_weights


def test_a_repeat_with_the_same_job_is_the_same_run_and_another_job_is_refused() -> None:
    world = two_workers()
    world.submit(job=make_job())
    assert world.machine.find("r", make_job()) == world.run()
    assert world.machine.find("other", make_job()) is None
    with pytest.raises(PipesvcError) as caught:
        world.machine.find("r", make_job(seed=1))
    assert caught.value.code == ErrorCode.RUN_EXISTS


def test_what_was_read_ahead_of_a_stream_is_for_inspectors_and_makes_no_other_job() -> None:
    world, job = two_workers(), make_job()
    job.data.first.structure = "[]"
    world.submit(job=job)
    assert world.machine.find("r", make_job()) == world.run()
    starts = [each.start_child.assignment for name in "ab" for each in world.workers[name].commands("start_child")]
    assert {each.role for each in starts if each.job.data.HasField("first")} == {types_pb2.ROLE_INSPECTOR}
    assert {each.role for each in starts} == {types_pb2.ROLE_INSPECTOR, types_pb2.ROLE_EXECUTOR, types_pb2.ROLE_FEEDER}


def test_an_unknown_run_is_refused_by_name() -> None:
    with pytest.raises(PipesvcError) as caught:
        World().run("nobody")
    assert caught.value.code == ErrorCode.RUN_NOT_FOUND


def test_the_second_run_is_inspected_at_once_and_runs_after_the_first() -> None:
    world = two_workers()
    world.workers["b"].mute.add("applied")
    world.submit("first")
    world.submit("second")
    assert world.state("first") == "RUNNING"
    assert world.state("second") == "QUEUED"
    assert world.awaited("second") == [("its turn", "run first")]
    assert world.run("second").plan_json
    for step in (1, 2, 3):
        if step == 3:
            world.workers["b"].mute.clear()
        applied = local_pb2.StepApplied(step=step, stage=1, loss=1.0)
        world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=applied), "first")
    assert world.state("first") == world.state("second") == "COMPLETED"
    assert [run.run_id for run in world.machine.runs()] == ["first", "second"]


def test_links_and_parameters_are_shown() -> None:
    world = two_workers()
    world.workers["b"].mute |= {"applied", "ready"}
    world.submit()
    parameters = [local_pb2.ParameterInfo(name="0.weight", num_bytes=64)]
    world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(ready=local_pb2.Ready(parameters=parameters)))
    link = types_pb2.LinkId(producer=0, consumer=1, kind=types_pb2.LINK_KIND_ACTIVATION)
    count = worker_pb2.LinkCount(run_id="r", link=link, tensor_bytes=10, wire_bytes=12, num_frames=1)
    world.speak("a", worker_pb2.AttachRequest(beat=worker_pb2.Beat(links=[count])))
    count.num_frames = 2
    world.speak("a", worker_pb2.AttachRequest(beat=worker_pb2.Beat(links=[count])))
    run = world.run()
    assert [(total.worker, total.num_frames) for total in run.links] == [("a", 2)]
    assert run.parameters["b"].parameters[0].name == "0.weight"


def test_what_executors_do_with_their_time_is_shown_and_stays_when_the_run_has_ended() -> None:
    world = two_workers()
    world.workers["b"].mute.add("applied")
    world.submit()
    world.add_worker("c")
    for name, computing_ns in (("a", 10), ("b", 20), ("c", 30), ("a", 40)):
        times = local_pb2.ExecutorTimes(computing_ns=computing_ns, no_core_ns=1)
        child = worker_pb2.ChildProgress(run_id="r", role=types_pb2.ROLE_EXECUTOR, times=times)
        feeder = worker_pb2.ChildProgress(run_id="r", role=types_pb2.ROLE_FEEDER)
        world.speak(name, worker_pb2.AttachRequest(beat=worker_pb2.Beat(children=[child, feeder])))
    assert {worker: times.computing_ns for worker, times in world.run().times.items()} == {"a": 40, "b": 20}
    for name in ("a", "b"):
        world.workers[name].mute.add("stopped")
    for step in (1, 2, 3):
        applied = local_pb2.StepApplied(step=step, stage=1, loss=1.0)
        world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=applied))
    for name, last in (("a", local_pb2.ExecutorTimes(computing_ns=50, no_core_ns=1)), ("b", None)):
        stopped = worker_pb2.RunStopped(run_id="r", times=last)
        world.speak(name, worker_pb2.AttachRequest(run_stopped=stopped))
    assert world.state() == "COMPLETED"
    assert {worker: times.computing_ns for worker, times in world.run().times.items()} == {"a": 50, "b": 20}


def test_w04_other_python_and_torch_minors_give_warnings() -> None:
    world = World()
    world.add_worker("a", make_registration("a", python="3.12.1", torch="2.11.0"))
    world.submit()
    first, second = world.run().warnings
    assert "Python 3.11.4" in first
    assert "Python 3.12.1" in first
    assert "torch 2.13.0" in second
    assert "torch 2.11.0" in second


def test_different_fingerprints_give_one_warning_that_names_the_workers() -> None:
    world = World()
    world.add_worker("a")
    world.add_worker("b", make_registration("b", fingerprint="other"))
    world.submit()
    (warning,) = world.run().warnings
    assert "a: same, b: other" in warning


def test_p12_one_micro_batch_on_two_stages_gives_a_warning() -> None:
    world = two_workers()
    world.submit(job=make_job(micro_batches=1))
    assert "nothing overlaps" in world.run().warnings[0]
