"""A link that cannot be measured: the profiler says why, and measures the next."""

from __future__ import annotations

import pytest

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.profiler import link_trial
from tests.unit.executor.memory_network import MemoryPort, Network


def test_a_profiler_that_gets_no_answer_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trial, "ANSWER_LIMIT_S", 0.01)
    network = Network()
    port = network.ports[0] = MemoryPort(network)
    told: list[local_pb2.FromChild] = []
    monkeypatch.setattr(port, "report", told.append)
    trials = link_trial.LinkTrials(port, 0)
    try:
        for peer in (1, 2):
            wanted = local_pb2.MeasureLink(endpoint=peer, worker=f"worker-{peer}")
            trials._events.append(local_pb2.ToChild(measure_link=wanted))
            trials.turn(0.01)
    finally:
        network.close()
    found = [each.link_profile for each in told]
    assert [each.endpoint for each in found] == [1, 2]
    assert "the profiler on worker worker-2 did not answer" in found[1].problem
