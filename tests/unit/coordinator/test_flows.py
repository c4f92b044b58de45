"""A module that is cut by replay: its flow reaches every process, and what has none runs as one stage or is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipesvc.coordinator.run_view import without_flow
from pipesvc.core.flow import Flow, Joined, Value
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo
from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2, worker_pb2
from tests.unit.coordinator.coordinator_world import World, make_job

UNITS = ("wte", "h", "head")
# The first unit's output is used by the last one alone.
FLOW = Flow(
    units=tuple(LayerInfo(name=name, type="Block") for name in UNITS),
    values=(
        Value(key="1.0.0", producer=0, users=(2,), shape=(2,), dtype="float32", num_bytes=8, is_differentiable=True),
    ),
    input_users={"ids": (0,)},
    parameters={f"{name}.weight": (index,) for index, name in enumerate(UNITS)},
)
NO_FLOW = types_pb2.ErrorReport(code=ErrorCode.INVALID_JOB.value, message="`.item()` at user.py:7 reads the value")


def world_of(*workers: str) -> World:
    """None of them reports what it inspected."""
    world = World()
    for name in workers:
        world.add_worker(name, mute="inspected")
    return world


def inspected(world: World, *, flow_json: str = "", no_flow: types_pb2.ErrorReport | None = None) -> None:
    layers = [local_pb2.LayerInfo(name=name, type="Block") for name in UNITS]
    found = local_pb2.Inspected(layers=layers, flow_json=flow_json, no_flow=no_flow)
    world.say("a", types_pb2.ROLE_INSPECTOR, local_pb2.FromChild(inspected=found))


def with_strategy(**strategy: object) -> job_pb2.JobSpec:
    job = make_job()
    job.strategy.MergeFrom(job_pb2.StrategySpec(**strategy))  # type: ignore[arg-type]
    return job


def test_the_flow_is_in_the_plan_of_every_worker() -> None:
    world = world_of("a", "b", "c")
    world.submit()
    inspected(world, flow_json=to_json(FLOW))
    assert world.state() == "COMPLETED"
    plans = [worker.plan for worker in world.workers.values()]
    assert [plan.flow if plan is not None else None for plan in plans] == [FLOW] * 3
    assert all(plan is not None and plan.ends == (1, 2, 3) for plan in plans)


def test_a_cut_that_the_flow_does_not_allow_ends_the_run() -> None:
    world = world_of("a", "b")
    world.submit()
    joined = Joined(first=0, last=2, reason="one function calls both", advice="Cut before it.")
    inspected(world, flow_json=to_json(replace(FLOW, joined=(joined,))))
    error = world.run().error
    assert (world.state(), error.code) == ("FAILED", "INVALID_PLAN")
    assert "cannot lie on stages 0 and 1: one function calls both" in error.message


@pytest.mark.parametrize(
    ("workers", "job"),
    [
        ("ab", make_job()),
        ("a", make_job(num_stages=2)),
        ("a", with_strategy(boundaries=[1])),
        ("a", with_strategy(boundary_names=["nowhere"])),
    ],
)
def test_several_stages_of_a_forward_that_could_not_be_followed_are_refused(workers: str, job: job_pb2.JobSpec) -> None:
    world = world_of(*workers)
    world.submit(job=job)
    inspected(world, no_flow=NO_FLOW)
    error = world.run().error
    assert (world.state(), error.code, error.message) == ("FAILED", "INVALID_JOB", NO_FLOW.message)
    assert error.run_id == "r"


def test_a_job_that_was_planned_as_one_stage_stays_so_when_workers_join() -> None:
    """It would be refused for what nobody asked of it, long after it was taken."""
    world = world_of("a")
    world.workers["a"].mute.add("applied")
    layers = [local_pb2.LayerInfo(name=name, type="Block") for name in UNITS]
    found = local_pb2.FromChild(inspected=local_pb2.Inspected(layers=layers, no_flow=NO_FLOW))
    for run_id in ("first", "waits", "late"):
        if run_id == "late":
            world.add_worker("b", mute="inspected")
        world.submit(run_id)
        inspector = next(iter(world.machine.record(run_id).inspector))  # type: ignore[union-attr]
        world.say(inspector, types_pb2.ROLE_INSPECTOR, found, run_id)
    assert (world.state("first"), world.state("waits")) == ("RUNNING", "QUEUED")
    assert world.run("late").error.message == NO_FLOW.message, "two workers would be two stages"
    for step in (1, 2, 3):
        if step == 3:
            world.workers["a"].mute.clear()
        applied = local_pb2.StepApplied(step=step, stage=0, loss=1.0)
        world.say("a", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=applied), "first")
    assert (world.state("first"), world.state("waits")) == ("COMPLETED", "COMPLETED")
    plan = world.workers["a"].plan
    assert plan is not None
    assert plan.num_stages == 1


def test_lists_of_runs_leave_the_flow_out() -> None:
    world = world_of("a", "b", "c")
    world.submit()
    inspected(world, flow_json=to_json(FLOW))
    whole = Plan.from_json(world.run().plan_json)
    brief = without_flow(world.run())
    assert Plan.from_json(brief.plan_json) == replace(whole, flow_json="")
    assert whole.flow == FLOW
    brief.plan_json = world.run().plan_json
    assert brief == world.run()


def test_one_stage_needs_no_flow() -> None:
    unpipelined = make_job(num_stages=3)
    unpipelined.strategy.is_pipelined = False
    for workers, job in (("a", make_job()), ("ab", make_job(num_stages=1)), ("ab", unpipelined)):
        world = world_of(*workers)
        world.submit(job=job)
        inspected(world, no_flow=NO_FLOW)
        assert world.state() == "COMPLETED"
        plan = world.workers["a"].plan
        assert plan is not None
        assert (plan.num_stages, plan.flow) == (1, None)


@pytest.mark.parametrize(
    ("way", "is_needed"),
    [
        (("a", "c"), True),  # a skip
        (("c", "a"), True),  # and its gradient
        (("a", "b"), True),  # inputs from the feeder
        (("b", "c"), False),
        (("b", "a"), False),
    ],
)
def test_the_ways_of_a_plan_are_those_of_its_flow(way: tuple[str, str], is_needed: bool) -> None:
    world = world_of("a", "b", "c")
    prober, peer = way
    found = worker_pb2.Peer(name=peer, incarnation=world.workers[peer].registration.incarnation)
    probe = worker_pb2.PeerProbe(peer=found, problem="no answer")
    for _ in range(2):
        world.speak(prober, worker_pb2.AttachRequest(peers_probed=worker_pb2.PeersProbed(probes=[probe])))
    job = make_job()
    job.strategy.placement.update({"stage:0": "a", "stage:1": "b", "stage:2": "c"})
    world.submit(job=job)
    inspected(world, flow_json=to_json(FLOW))
    assert world.state() == ("FAILED" if is_needed else "COMPLETED")
    assert world.run().error.code == ("LINK_LOST" if is_needed else "")
