"""Who is asked to dial whom, what is made of the answers, and what a plan over a broken way becomes."""

from __future__ import annotations

import pytest

from pipesvc.coordinator import events
from pipesvc.coordinator.limits import (
    FIRST_REPROBE_S,
    FRESH_FINDING_S,
    NUM_PROBED_PEERS,
    PROBE_ANSWER_BOUND_S,
    REPROBE_S,
)
from pipesvc.core.plan import Plan
from pipesvc.rpc.v1 import job_pb2, worker_pb2
from tests.unit.coordinator.coordinator_world import World, make_job, make_registration, two_workers

SILENCE = "no answer"


def asked(world: World, worker: str) -> list[list[str]]:
    """The peers of each request to this worker, in the order of the requests."""
    requests = world.workers[worker].commands("probe_peers")
    return [[peer.name for peer in request.probe_peers.peers] for request in requests]


def answer(world: World, worker: str, **problems: str) -> None:
    """This worker says what it found; "" is a peer that it reached."""
    registrations = {name: world.workers[name].registration for name in problems}
    probes = [
        worker_pb2.PeerProbe(peer=worker_pb2.Peer(name=name, incarnation=found.incarnation), problem=problems[name])
        for name, found in registrations.items()
    ]
    world.speak(worker, worker_pb2.AttachRequest(peers_probed=worker_pb2.PeersProbed(probes=probes)))


def said(world: World) -> list[str]:
    return [command.text for command in world.commands if isinstance(command, events.Say)]


def notices(world: World, worker: str) -> list[str]:
    return [command.notice.text for command in world.workers[worker].commands("notice")]


def found(world: World) -> list[tuple[str, str, int]]:
    return [(each.worker, each.peer, each.num_probes) for each in world.machine.fleet.reach.unreached]


def test_a_newcomer_dials_itself_and_the_others_and_these_dial_it() -> None:
    world = two_workers()
    assert asked(world, "a") == [["a"], ["b"]]
    assert asked(world, "b") == [["b", "a"]]
    (request,) = world.workers["b"].commands("probe_peers")
    assert request.probe_peers.timeout_ms == 3000
    assert request.probe_peers.peers[1].data_address == "a:7000"


def test_a_join_costs_the_same_in_a_large_fleet() -> None:
    world = World()
    names = [f"w{number}" for number in range(NUM_PROBED_PEERS + 4)]
    for name in names:
        world.add_worker(name)
    (request,) = asked(world, names[-1])
    assert len(request) == NUM_PROBED_PEERS + 1
    assert [names[-1]] not in asked(world, names[0])


def test_a_worker_that_comes_back_on_another_stream_is_not_asked_again() -> None:
    world = two_workers()
    world.break_stream("b")
    world.workers["b"].session = 99
    world.tell(events.WorkerAttached(session=99, registration=world.workers["b"].registration))
    assert asked(world, "b") == [["b", "a"]]


def test_what_fails_is_said_once_here_and_at_both_terminals() -> None:
    world = two_workers()
    answer(world, "a", b=SILENCE)
    answer(world, "a", b=SILENCE)
    (line,) = said(world)
    assert line.startswith("worker a cannot reach worker b at b:7000: no answer. Start b with an --advertise HOST:PORT")
    assert notices(world, "a") == notices(world, "b") == [line]
    answer(world, "a", b="")
    assert said(world)[1:] == ["worker a can reach b at b:7000 now"]
    assert found(world) == []


def test_a_worker_that_does_not_reach_itself_is_told_once() -> None:
    world = two_workers()
    answer(world, "b", b=SILENCE, a="")
    assert notices(world, "b") == said(world)
    assert said(world)[0].startswith("worker b cannot reach itself at b:7000: no answer")
    assert notices(world, "a") == []


def test_answers_of_peers_that_are_gone_do_not_matter() -> None:
    world = two_workers()
    old = world.workers["b"].registration
    world.break_stream("b")
    world.add_worker("b", make_registration("b", incarnation="2"))
    probe = worker_pb2.PeerProbe(peer=worker_pb2.Peer(name="b", incarnation=old.incarnation), problem=SILENCE)
    world.speak("a", worker_pb2.AttachRequest(peers_probed=worker_pb2.PeersProbed(probes=[probe])))
    assert found(world) == []


def test_what_is_known_of_a_lost_worker_is_forgotten() -> None:
    world = two_workers()
    answer(world, "a", b=SILENCE)
    world.break_stream("b")
    world.pass_time(4.0)
    assert found(world) == []


def test_a_failure_is_tried_again_soon_then_seldom() -> None:
    world = two_workers()
    answer(world, "a", b=SILENCE)
    before = len(asked(world, "a"))
    world.pass_time(FIRST_REPROBE_S + 0.2)
    assert asked(world, "a")[before:] == [["b"]]
    world.pass_time(PROBE_ANSWER_BOUND_S - 1)
    assert len(asked(world, "a")) == before + 1
    answer(world, "a", b=SILENCE)
    assert found(world) == [("a", "b", 2)]
    world.pass_time(REPROBE_S - 0.5)
    assert len(asked(world, "a")) == before + 1
    world.pass_time(1.0)
    assert len(asked(world, "a")) == before + 2


def test_an_answer_that_never_comes_is_asked_for_again() -> None:
    world = two_workers()
    answer(world, "a", b=SILENCE)
    before = len(asked(world, "a"))
    world.pass_time(FIRST_REPROBE_S + PROBE_ANSWER_BOUND_S + 1)
    assert len(asked(world, "a")) == before + 2


@pytest.mark.parametrize(("prober", "peer"), [("a", "b"), ("b", "a"), ("a", "a")])
def test_f18_a_plan_over_a_way_that_failed_twice_is_refused_by_name(prober: str, peer: str) -> None:
    world = two_workers()
    for _ in range(2):
        answer(world, prober, **{peer: SILENCE})
    job = make_job()
    job.strategy.placement.update({"stage:0": "a", "stage:1": "b"})
    world.submit(job=job)
    error = world.run().error
    assert (world.state(), error.code, error.worker) == ("FAILED", "LINK_LOST", peer)
    assert f"worker {prober} cannot reach" in error.message
    assert "tried 2 times" in error.message
    assert f"Start {peer} with an --advertise" in error.advice
    assert not [command for command in world.commands if isinstance(command, events.RecordPlan)]


def test_a_way_that_failed_once_is_a_warning() -> None:
    world = two_workers()
    answer(world, "a", b=SILENCE)
    world.submit()
    assert world.state() == "COMPLETED"
    assert "worker a cannot reach worker b at b:7000: no answer" in world.run().warnings


def test_an_old_finding_refuses_nothing() -> None:
    world = two_workers()
    for _ in range(2):
        answer(world, "a", b=SILENCE)
    world.pass_time(FRESH_FINDING_S + 1)
    world.submit()
    assert world.state() == "COMPLETED"


def test_a_way_that_a_plan_does_not_take_does_not_matter() -> None:
    world = two_workers()
    world.add_worker("c")
    for _ in range(2):
        answer(world, "c", a=SILENCE, b=SILENCE)
        answer(world, "b", b=SILENCE)
    world.submit(job=make_job(num_stages=2))
    assert world.state() == "COMPLETED"
    assert world.run().warnings == []


def test_f18_a_worker_that_cannot_be_reached_is_left_out_where_others_suffice() -> None:
    world = two_workers()
    world.add_worker("c")
    for _ in range(2):
        answer(world, "a", b=SILENCE)
        answer(world, "c", b=SILENCE)
    world.submit(job=make_job(num_stages=2))
    assert world.state() == "COMPLETED"
    plan = Plan.from_json(world.run().plan_json)
    assert plan.workers == ("a", "c")


@pytest.mark.parametrize("decides", ["", "clip_norm", "grad_scaler"])
def test_where_stages_decide_together_each_speaks_with_the_first(decides: str) -> None:
    world = two_workers()
    world.add_worker("c")
    job = make_job(num_stages=3)
    if decides == "clip_norm":
        job.clip_norm = 1.0
    elif decides:
        job.grad_scaler.CopyFrom(
            job_pb2.GradScalerSpec(init_scale=1, growth_factor=2, backoff_factor=0.5, growth_interval=1)
        )
    job.strategy.placement.update({"stage:0": "a", "stage:1": "b", "stage:2": "c"})
    for _ in range(2):
        answer(world, "c", a=SILENCE)
    world.submit(job=job)
    assert world.state() == ("FAILED" if decides else "COMPLETED")
