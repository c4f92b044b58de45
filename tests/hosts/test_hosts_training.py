"""A run over three hosts: its numbers, the way that its tensors take, and the order in which hosts come up."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from tests.hosts import wide
from tests.hosts.cluster import Cluster
from tests.integration import jobs, plain
from tests.waiting import until


def test_activations_go_straight_from_worker_to_worker_and_numbers_are_those_of_one_process(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    assert "faces the network without encryption" in coordinator.output
    cluster.start_worker("a")
    cluster.await_workers("a")
    cluster.start_worker("b", PIPESVC_TOKEN=cluster.token())
    cluster.await_workers("a", "b")
    names = ("a", "b", "c", "d")
    before = {name: cluster.hosts[name].interface_bytes() for name in names}
    seen = cluster.train(wide.NUM_STEPS)
    after = {name: cluster.hosts[name].interface_bytes() for name in names}
    received = {name: after[name][0] - before[name][0] for name in names}
    sent = {name: after[name][1] - before[name][1] for name in names}

    truth = plain.train(
        wide.build,
        lambda: jobs.samples(wide.NUM_STEPS * wide.BATCH_ROWS),
        jobs.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=wide.LEARNING_RATE),
        batch_size=wide.BATCH_ROWS,
        micro_batches=wide.MICRO_BATCHES,
        seed=wide.SEED,
    )
    assert seen["losses"] == truth.losses
    weights = load_file(cluster.weights_path)
    assert weights.keys() == truth.weights.keys()
    assert all(torch.equal(weights[name], truth.weights[name]) for name in weights)
    assert seen["warnings"] == []

    carried = {link["link"]: (link["worker"], link["tensor_bytes"]) for link in seen["links"]}
    assert carried["0>1/activation"] == ("a", wide.BOUNDARY_BYTES)
    assert carried["1>0/gradient"] == ("b", wide.BOUNDARY_BYTES)
    assert min(sent["a"], received["b"], sent["b"], received["a"]) > wide.BOUNDARY_BYTES
    # What the coordinator and the client move is the bundle and the weights.
    assert max(sent["c"] + received["c"], sent["d"] + received["d"]) < wide.BOUNDARY_BYTES / 4


def test_f19_workers_first_then_coordinator_then_the_missing_worker(cluster: Cluster) -> None:
    early = cluster.start_worker("a")
    until(lambda: "dialling for up to" in early.output, "dialling")
    cluster.start_coordinator()
    cluster.await_workers("a")
    client = cluster.start_client(4)
    until(lambda: "1 of 2 workers" in cluster.status(), "named wait")
    assert client.process.poll() is None
    cluster.start_worker("b")
    assert client.wait() == 0, client.output
    assert len(cluster.result()["losses"]) == 4


def test_w03_two_workers_on_one_port_of_a_host(cluster: Cluster) -> None:
    cluster.start_coordinator()
    first = cluster.start_worker("a")
    cluster.await_workers("a")
    for listen in ("", "0.0.0.0:7001"):
        second = cluster.start_worker("second", host="a", listen=listen)
        assert second.wait() == 7
        line = second.output.splitlines()[-1]
        assert line.startswith("pipesvc worker second: PORT_TAKEN: cannot listen on")
        assert "another process has this port" in line
    assert first.process.poll() is None
    # On another host the same port is another port.
    cluster.start_worker("b")
    cluster.await_workers("a", "b")
