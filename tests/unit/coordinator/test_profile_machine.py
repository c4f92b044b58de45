"""The life of a profile among workers and runs, in simulated time."""

from __future__ import annotations

from typing import Any

import pytest

from pipesvc.coordinator import events
from pipesvc.coordinator.limits import LINK_PROFILE_BOUND_S
from pipesvc.core.costs import Costs
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from tests.unit.coordinator.coordinator_world import SimulatedWorker, World, make_job

PROFILER = types_pb2.ROLE_PROFILER


class ProfileWorld(World):
    """Workers measure at once; `mute` may hold "device", "profiler" (never ready) or "link"."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_worker(name)

    def ask(self, profile_id: str = "p", known: dict[str, Costs] | None = None, **changes: Any) -> None:
        job = make_job(**changes)
        self.tell(events.ProfileAsked(profile_id=profile_id, job=job, link_token="secret", known=known or {}))

    def _start(self, worker: SimulatedWorker, assignment: local_pb2.Assignment) -> None:
        if assignment.role != PROFILER:
            super()._start(worker, assignment)
            return
        for device in assignment.devices:
            layers = [local_pb2.LayerProfile(layer=local_pb2.LayerInfo(name=name), forward_s=0.5) for name in "01"]
            found = local_pb2.DeviceProfile(device=device, micro_batch_rows=4, layers=layers)
            report = local_pb2.FromChild(device_profile=found)
            self._report(worker, assignment.run_id, PROFILER, "device", report)
        ready = local_pb2.FromChild(ready=local_pb2.Ready())
        self._report(worker, assignment.run_id, PROFILER, "profiler", ready)

    def _obey(self, worker: SimulatedWorker, to_run: worker_pb2.ToRun) -> None:
        if to_run.role != PROFILER:
            super()._obey(worker, to_run)
            return
        endpoint = to_run.message.measure_link.endpoint
        found = local_pb2.LinkProfile(endpoint=endpoint, latency_s=0.001, bytes_per_s=1e9)
        self._report(worker, to_run.run_id, PROFILER, "link", local_pb2.FromChild(link_profile=found))

    def ends(self, profile_id: str = "p") -> list[events.EndProfile]:
        found = [command for command in self.commands if isinstance(command, events.EndProfile)]
        return [each for each in found if each.profile_id == profile_id]

    def told(self, profile_id: str = "p") -> list[tuple[str, str]]:
        """What the profile awaits, as it was last told."""
        reports = [each for each in self.commands if isinstance(each, events.ReportProfile)]
        return [
            (line.what, line.from_whom) for each in reports if each.profile_id == profile_id for line in each.awaited
        ]

    def starts(self, worker: str) -> list[local_pb2.Assignment]:
        started = [message.start_child.assignment for message in self.workers[worker].commands("start_child")]
        return [assignment for assignment in started if assignment.role == PROFILER]

    def error(self, profile_id: str = "p") -> types_pb2.ErrorReport:
        [ended] = self.ends(profile_id)
        assert ended.error is not None
        return ended.error


def test_every_device_is_measured_at_once_and_every_pair_one_after_another() -> None:
    world = ProfileWorld("a", "b")
    world.ask()
    [ended] = world.ends()
    assert ended.costs is not None
    assert [(device.worker, device.device) for device in ended.costs.devices] == [("a", "cpu"), ("b", "cpu")]
    assert list(ended.costs.links) == [("a", "b"), ("b", "a")]
    assert len(ended.measured) == 4
    [start] = world.starts("b")
    assert (start.num_threads, start.endpoint, list(start.devices)) == (2, 1, ["cpu"])
    addresses = world.workers["b"].commands("start_child")[0].start_child.addresses
    assert addresses == {0: "a:7000", 1: "b:7000"}
    assert all(worker.commands("stop_run") for worker in world.workers.values())


def test_what_is_known_is_not_measured_again() -> None:
    world = ProfileWorld("a", "b")
    world.ask()
    known = world.ends()[0].measured
    world.ask("again", known=dict(known))
    assert world.ends("again")[0].measured == {}
    assert world.ends("again")[0].costs == world.ends()[0].costs
    links = {key: part for key, part in known.items() if part.links}
    world.ask("links known", known=links)
    assert world.ends("links known")[0].measured.keys() == known.keys() - links.keys()
    world.ask("devices known", known={key: part for key, part in known.items() if not part.links})
    assert world.ends("devices known")[0].measured.keys() == links.keys()
    assert [list(start.devices) for start in world.starts("a")] == [["cpu"], ["cpu"], []]


def test_what_is_known_is_told_beside_a_run() -> None:
    world = ProfileWorld("a", "b")
    world.ask()
    world.workers["a"].mute = {"applied"}
    world.submit()
    assert world.state() == "RUNNING"
    world.ask("again", known=dict(world.ends()[0].measured))
    assert world.ends("again")[0].costs is not None


def test_a_profile_waits_for_a_run_and_holds_the_queue() -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {"ready"}
    world.submit("first")
    world.workers["b"].mute = {"profiler"}
    world.ask()
    world.submit("second")
    assert world.told()[-1] == ("the end of run first", "")
    assert world.awaited("second") == [("its turn", "the profile of small")]
    world.tell(events.RunCancelled(run_id="first"))
    assert world.state("first") == "CANCELLED"
    assert world.starts("a")
    world.submit("third")
    assert world.awaited("third") == [("its turn", "the profile of small")]
    num_commands = len(world.commands)
    world.pass_time(30)
    assert not [each for each in world.commands[num_commands:] if isinstance(each, events.PublishRun)]
    assert world.state("second") == "QUEUED"
    world.workers["a"].mute = set()
    world.say("b", PROFILER, local_pb2.FromChild(ready=local_pb2.Ready()), run_id="p")
    assert world.ends()[0].costs is not None
    assert world.state("second") == world.state("third") == "COMPLETED"


def test_profiles_are_measured_in_their_order() -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {"link"}
    world.ask()
    world.ask("next")
    assert world.told()[-1] == ("measuring the link to b", "a")
    assert world.told("next") == [("the end of the profile of small", "")]
    world.workers["a"].mute = set()
    link = local_pb2.LinkProfile(endpoint=1, latency_s=0.001, bytes_per_s=1e9)
    world.say("a", PROFILER, local_pb2.FromChild(link_profile=link), run_id="p")
    assert world.ends()[0].costs is not None
    assert world.ends("next")[0].costs is not None


def test_f19_a_profile_without_workers_waits_for_them_in_bounds() -> None:
    world = ProfileWorld()
    world.ask()
    assert world.told() == [("a worker", "any host")]
    world.pass_time(19)
    assert not world.ends()
    world.pass_time(2)
    assert world.error().code == ErrorCode.MISSING_WORKER
    world.ask("late")
    world.add_worker("a")
    assert world.ends("late")[0].costs is not None


def test_a_run_that_does_not_end_is_named() -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {"applied"}
    world.submit()
    world.ask()
    world.pass_time(21)
    assert world.error().code == ErrorCode.TIMED_OUT
    assert "run r did not end within 20 s" in world.error().message
    assert world.state() == "RUNNING"


@pytest.mark.parametrize("mute", ["profiler", "link"])
def test_a_worker_that_dies_is_named_and_the_queue_goes_on(mute: str) -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {mute}
    world.ask()
    world.submit()
    world.break_stream("b")
    world.pass_time(4)
    error = world.error()
    assert (error.code, error.worker) == (ErrorCode.WORKER_LOST, "b")
    assert "profile again" in error.advice
    assert world.workers["a"].commands("stop_run")
    assert world.state() == "COMPLETED"


def test_the_first_failure_of_a_profiler_ends_it_with_its_place() -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {"profiler"}
    world.ask()
    for code in (ErrorCode.STAGE_FAILED, ErrorCode.LINK_LOST):
        failed = types_pb2.ErrorReport(code=code.value, message="measuring layer '1' (Linear) on cpu: boom")
        world.say("a", PROFILER, local_pb2.FromChild(failed=failed), run_id="p")
    assert (world.error().code, world.error().worker, world.error().host) == ("STAGE_FAILED", "a", "host-of-a")


def test_a_profiler_may_take_long_as_long_as_it_gets_further() -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {"profiler"}
    world.ask()
    for layer in range(1, 5):
        progress = local_pb2.Progress(phase=f"measuring layer {layer} of 4 on cpu", since_unix_ns=layer)
        child = worker_pb2.ChildProgress(run_id="p", role=PROFILER, progress=progress)
        world.speak("a", worker_pb2.AttachRequest(beat=worker_pb2.Beat(children=[child])))
        world.tell(events.Ticked())
        assert world.told()[-1] == (f"measuring layer {layer} of 4 on cpu", "a")
        world.machine.fleet.members[0].children = []
        world.pass_time(50)
    world.pass_time(11)
    assert world.error().code == ErrorCode.BUILD_TIMED_OUT
    assert "the profiler on a got no further within 60 s; it was measuring layer 4 of 4" in world.error().message


def test_a_link_that_is_not_measured_is_named() -> None:
    world = ProfileWorld("a", "b")
    world.workers["b"].mute = {"link"}
    world.ask()
    world.pass_time(LINK_PROFILE_BOUND_S + 1)
    assert world.error().code == ErrorCode.TIMED_OUT
    assert "worker b did not measure its link to a" in world.error().message


def test_nobody_waits_any_more() -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {"profiler", "stopped"}
    world.ask()
    world.submit()
    world.tell(events.ProfileAbandoned(profile_id="p"))
    assert not world.ends()
    assert all(worker.commands("stop_run") for worker in world.workers.values())
    assert world.state() == "WAITING"
    world.workers["a"].mute = set()
    world.pass_time(9)
    assert world.state() == "COMPLETED"


def test_a_worker_that_ends_its_children_unasked_is_named() -> None:
    world = ProfileWorld("a", "b")
    world.workers["a"].mute = {"profiler"}
    world.ask()
    world.speak("b", worker_pb2.AttachRequest(run_stopped=worker_pb2.RunStopped(run_id="p")))
    assert (world.error().code, world.error().worker) == (ErrorCode.CHILD_DIED, "b")
