"""Hosts whose own name is loopback to themselves, as Debian's installer writes it into /etc/hosts."""

from __future__ import annotations

import pytest

from tests.hosts.cluster import DATA_PORT, Cluster
from tests.waiting import until


@pytest.fixture
def named(cluster: Cluster) -> Cluster:
    """Each host's own name is 127.0.1.1 on it, and right on the others."""
    hosts = cluster.hosts
    for own in hosts.values():
        lines = [f"{host.address} host-{host.name}" for host in hosts.values() if host is not own]
        own.name_in_hosts_file([f"127.0.1.1 host-{own.name}", *lines])
    return cluster


def test_an_advertised_name_that_is_loopback_here_becomes_the_address_towards_the_coordinator(named: Cluster) -> None:
    named.start_coordinator()
    address = named.hosts["a"].address
    a = named.start_worker("a", listen=f"0.0.0.0:{DATA_PORT}", advertise=f"host-a:{DATA_PORT}")
    named.await_workers("a")
    told = f"host-a is 127.0.1.1 on this host: peers are told to dial {address}:{DATA_PORT} instead"
    assert told in a.output
    # No --advertise at all, the coordinator by its name, and a port that the system chooses.
    named.address = f"host-c:{named.address.split(':')[1]}"
    b = named.start_worker("b", listen="0.0.0.0:0", advertise="-")
    named.address = f"{named.hosts['c'].address}:{named.address.split(':')[1]}"
    named.await_workers("a", "b")
    assert len(named.train(4)["losses"]) == 4
    assert "cannot reach" not in a.output + b.output


def test_listening_at_a_name_that_is_loopback_here_is_refused_with_the_way_out(named: Cluster) -> None:
    worker = named.start_worker("a", listen=f"host-a:{DATA_PORT}", advertise="-")
    assert worker.wait() == 2
    (line,) = worker.output.splitlines()
    assert f"--listen host-a:{DATA_PORT}: host-a is 127.0.1.1 on this host, where no other host reaches it" in line
    assert f"Give --listen {named.hosts['a'].address}:{DATA_PORT}" in line


def test_a_coordinator_that_listens_at_such_a_name_says_so(named: Cluster) -> None:
    coordinator = named.start_coordinator(listen="host-c:7700")
    assert "host-c is 127.0.1.1 on this host: no other host reaches host-c:7700" in coordinator.output
    worker = named.start_worker("a", **{"advertise": "-"})
    until(lambda: "COORDINATOR" in worker.output or "nothing answers" in worker.output, "word of the worker", 30)
