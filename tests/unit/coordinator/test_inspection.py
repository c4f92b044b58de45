"""A trial of the data refuses a job only where the worker that would meet the fault has met it."""

from __future__ import annotations

import pytest

from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, types_pb2
from tests.unit.coordinator.coordinator_world import World, make_registration, two_workers


def misfit(layer: int | None = None) -> local_pb2.DataMisfit:
    error = types_pb2.ErrorReport(code=ErrorCode.STAGE_FAILED.value, message="tried: no fit", worker="a")
    return local_pb2.DataMisfit(error=error, layer=layer)


def test_a13_data_that_does_not_fit_a_layer_on_a_cpu_is_refused_before_anything_starts() -> None:
    world = two_workers()
    world.misfit = misfit(layer=3)
    run = world.submit()
    assert world.state() == "FAILED"
    assert (run.error.message, run.error.stage) == ("tried: no fit", 1)
    assert all(
        start.start_child.assignment.role == types_pb2.ROLE_INSPECTOR
        for worker in world.workers.values()
        for start in worker.commands("start_child")
    )


def test_a13_what_did_not_fit_on_a_cpu_may_fit_the_gpu_of_the_plan() -> None:
    world = World()
    for name, device in (("a", "cpu"), ("b", "cuda:0")):
        registration = make_registration(name)
        registration.devices[:] = [device]
        world.add_worker(name, registration)
    world.misfit = misfit(layer=3)
    world.submit()
    assert world.state() == "COMPLETED"


def test_a13_a_batch_that_is_unfit_by_itself_is_refused_wherever_the_stages_are() -> None:
    world = two_workers()
    world.misfit = misfit()
    run = world.submit()
    assert run.error.message == "tried: no fit"
    assert not run.error.HasField("stage")


def inspectors(world: World) -> list[str]:
    return [
        worker.name
        for worker in world.workers.values()
        for start in worker.commands("start_child")
        if start.start_child.assignment.role == types_pb2.ROLE_INSPECTOR
    ]


@pytest.mark.parametrize(("layer", "owner"), [(0, "a"), (3, "b"), (None, "a")])
def test_a13_what_another_worker_cannot_do_is_looked_at_again_by_the_one_that_will(
    layer: int | None, owner: str
) -> None:
    world = two_workers()
    world.misfit, world.misfit_on = misfit(layer), {"a", "b"} - {owner}
    world.submit()
    assert world.state() == "COMPLETED"
    assert set(inspectors(world)) <= {"a", "b"}
    assert owner in inspectors(world)


def test_a13_a_finding_is_confirmed_once_and_by_the_worker_that_will_hold_the_layer() -> None:
    world = two_workers()
    world.misfit = misfit(layer=3)
    assert world.submit().error.stage == 1
    assert sorted(inspectors(world)) == ["a", "b"]


def test_a13_a_trial_that_kills_its_inspector_is_left_to_the_run() -> None:
    world = two_workers()
    world.dies_trying_on = {"a", "b"}
    world.submit()
    assert world.state() == "COMPLETED"


def test_a13_a_trial_that_does_not_end_is_left_to_the_run() -> None:
    world = two_workers()
    for worker in world.workers.values():
        worker.mute.add("inspected")
    world.submit()
    assert world.state() == "INSPECTING"
    world.pass_time(61)
    assert world.state() == "COMPLETED"
