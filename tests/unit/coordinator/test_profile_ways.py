"""A pair of workers without a way between them has no link cost, and fails no profile."""

from __future__ import annotations

import pytest

from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from tests.unit.coordinator.test_profile_machine import PROFILER, ProfileWorld


def _unreached(world: ProfileWorld, worker: str, peer: str, problem: str = "no answer") -> None:
    registration = world.machine.fleet.member(peer)
    assert registration is not None
    found = worker_pb2.Peer(name=peer, incarnation=registration.incarnation)
    probe = worker_pb2.PeerProbe(peer=found, problem=problem)
    world.speak(worker, worker_pb2.AttachRequest(peers_probed=worker_pb2.PeersProbed(probes=[probe])))


def _open(world: ProfileWorld, profile_id: str = "p") -> set[tuple[str, str]]:
    [ended] = world.ends(profile_id)
    assert ended.costs is not None
    return {pair for pair, link in ended.costs.links.items() if link.is_open}


def test_a_pair_that_could_not_dial_is_not_measured_either_way() -> None:
    world = ProfileWorld("a", "b", "c")
    _unreached(world, "a", "b")
    world.ask()
    assert _open(world) == {("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")}
    assert len(world.ends()[0].measured) == 3 + 4
    known = dict(world.ends()[0].measured)
    world.ask("again", known=known)
    assert world.ends("again")[0].measured == {}
    assert _open(world, "again") == _open(world)
    _unreached(world, "a", "b", problem="")
    world.ask("open", known=known)
    assert len(_open(world, "open")) == 6


def test_one_that_is_found_while_links_are_measured_is_left_out() -> None:
    world = ProfileWorld("a", "b", "c")
    world.workers["a"].mute = {"link"}
    world.ask()
    assert world.told()[-1] == ("measuring the link to b", "a")
    # The agents tell that the link is lost, and the profiler of the sender why it gave up.
    for worker in "ab":
        failed = types_pb2.ErrorReport(code=ErrorCode.LINK_LOST.value, message="no stream", is_echo=True)
        world.say(worker, PROFILER, local_pb2.FromChild(failed=failed), run_id="p")
    assert world.ends() == []
    world.workers["a"].mute = set()
    told = local_pb2.LinkProfile(endpoint=1, problem="the profiler on worker b did not answer")
    world.say("a", PROFILER, local_pb2.FromChild(link_profile=told), run_id="p")
    assert _open(world) == {("a", "c"), ("c", "a"), ("b", "a"), ("b", "c"), ("c", "b")}
    assert not any(("a", "b") in part.links for part in world.ends()[0].measured.values())


@pytest.mark.parametrize(("worker", "is_echo"), [("c", True), ("a", False)])
def test_any_other_failure_still_ends_the_profile(worker: str, is_echo: bool) -> None:
    world = ProfileWorld("a", "b", "c")
    world.workers["a"].mute = {"link"}
    world.ask()
    failed = types_pb2.ErrorReport(code=ErrorCode.LINK_LOST.value, message="boom", is_echo=is_echo)
    world.say(worker, PROFILER, local_pb2.FromChild(failed=failed), run_id="p")
    assert world.error().message == "boom"
