"""Workers that others cannot dial: said when they join, and before a run that needs the way."""

from __future__ import annotations

import re
import time

from tests.hosts.cluster import DATA_PORT, Cluster
from tests.waiting import until

# Of a run that finds out by itself: until a link is lost, and until that is believed to be the cause.
SET_TIME_S = 10.0 + 2.0
# Of a client, an inspection, and processes that are built: no measurement, only a bound that a loaded machine keeps.
START_S = 40.0


def test_f18_a_wrong_advertised_address_is_named_at_join_and_a_run_over_it_is_refused(cluster: Cluster) -> None:
    """Nobody has the address; whoever dials it hears of that, or hears nothing at all."""
    wrong = f"192.0.2.99:{DATA_PORT}"
    coordinator = cluster.start_coordinator()
    a = cluster.start_worker("a")
    cluster.await_workers("a")
    b = cluster.start_worker("b", advertise=wrong)
    said = f"worker a cannot reach worker b at {wrong}: "
    for started in (coordinator, a, b):
        until(lambda: said in started.output, "finding", 15)  # noqa: B023
    line = next(line for line in coordinator.output.splitlines() if said in line)
    assert line.startswith("pipesvc coordinator: worker a")
    assert "Start b with an --advertise HOST:PORT that a can dial" in line
    # Its own feeder would dial it too.
    until(lambda: f"worker b cannot reach itself at {wrong}: " in b.output, "finding of b", 15)
    # The other way is good.
    assert "worker b cannot reach worker a" not in coordinator.output
    # Tried again it is no passing trouble.
    firm = re.compile(rf"WARNING: worker a cannot reach b at {re.escape(wrong)}: .*, tried ([2-9]|\d\d) times")
    until(lambda: firm.search(cluster.status()), "warning", 15)

    started_s = time.monotonic()
    seen = cluster.train(4)
    assert time.monotonic() - started_s < START_S
    assert (seen["code"], seen["worker"]) == ("LINK_LOST", "b")
    assert said in seen["text"]
    assert "times in" in seen["text"]
    assert "--advertise" in seen["text"]


def test_f18_a_way_that_closes_after_the_join_is_a_named_error_within_the_set_time(cluster: Cluster) -> None:
    cluster.start_coordinator()
    cluster.start_worker("a")
    cluster.await_workers("a")
    cluster.start_worker("b")
    cluster.await_workers("a", "b")
    a, b = cluster.hosts["a"], cluster.hosts["b"]
    a.cut_off(b)
    started_s = time.monotonic()
    seen = cluster.train(4)
    assert time.monotonic() - started_s < START_S + SET_TIME_S
    assert seen["code"] == "LINK_LOST"
    assert re.search(rf"link \S+ to {re.escape(b.address)}:{DATA_PORT} could not be opened within", seen["text"])


def test_f18_a_wrong_coordinator_address_is_named_within_the_set_time(cluster: Cluster) -> None:
    elsewhere = f"192.0.2.98:{DATA_PORT}"
    arguments = ("--coordinator", elsewhere, "--name", "a", "--coordinator-wait", "3", "--insecure")
    started_s = time.monotonic()
    worker = cluster.start(cluster.hosts["a"], "pipesvc", "worker", *arguments, "--listen", "0.0.0.0:0")
    assert worker.wait(30) == 8
    assert time.monotonic() - started_s < 25
    last = worker.output.splitlines()[-1]
    assert "COORDINATOR_ABSENT" in last
    assert elsewhere in last


def test_a_way_that_is_opened_again_is_noticed_and_used(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    a, b = cluster.hosts["a"], cluster.hosts["b"]
    a.cut_off(b)
    worker = cluster.start_worker("a")
    cluster.await_workers("a")
    cluster.start_worker("b")
    until(lambda: "worker a cannot reach worker b" in coordinator.output, "finding", 15)
    a.reconnect(b)
    for started in (coordinator, worker):
        until(lambda: f"worker a can reach b at {b.address}:{DATA_PORT} now" in started.output, "good news", 30)  # noqa: B023
    # Answers could not leave either, so b had found the same of a.
    until(lambda: "WARNING" not in cluster.status(), "end of the warnings", 30)
    assert len(cluster.train(4)["losses"]) == 4


def test_an_address_that_leads_to_another_worker_is_found(cluster: Cluster) -> None:
    """Each would dial itself: a port that answers is not yet the right one."""
    coordinator = cluster.start_coordinator()
    first = cluster.start_worker("a", listen=f"127.0.0.1:{DATA_PORT}", advertise="-")
    cluster.await_workers("a")
    assert f"other hosts cannot reach 127.0.0.1:{DATA_PORT}, its data server" in first.output
    cluster.start_worker("b", listen=f"127.0.0.1:{DATA_PORT}", advertise="-")
    said = f"worker a cannot reach worker b at 127.0.0.1:{DATA_PORT}: worker a answers there"
    until(lambda: said in coordinator.output, "finding", 15)
