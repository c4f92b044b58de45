"""A profiler in this process, which ends when it would wait for the coordinator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.worker.profiler import link_trial, main
from tests.unit.executor.memory_network import MemoryPort, Network

CODE = "tests.unit.profiler.profiled_code"
FLOAT, LONG = 4, 8


class DoneError(Exception):
    """Instead of waiting for the coordinator."""


def make_job(model: str, *, source: str = "rows", optimizer: str = "SGD", **arguments: Any) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(
        model=types_pb2.Call(target=f"{CODE}:{model}", arguments_json=json.dumps(arguments)),
        loss=types_pb2.Call(target=f"{CODE}:loss"),
        optimizer=types_pb2.Call(target=f"torch.optim:{optimizer}", arguments_json='{"lr": 0.1}'),
        data=job_pb2.DataSpec(
            source=types_pb2.Call(target=f"{CODE}:{source}"),
            yields=job_pb2.YIELDS_SAMPLE,
            batch_size=16,
            has_labels=True,
        ),
        strategy=job_pb2.StrategySpec(is_pipelined=True, micro_batches=2),
        seed=11,
    )


def assignment(job: job_pb2.JobSpec) -> local_pb2.Assignment:
    return local_pb2.Assignment(run_id="p", job=job, worker="w", host="h", num_threads=1, devices=["cpu"])


def profiled(job: job_pb2.JobSpec, monkeypatch: pytest.MonkeyPatch) -> local_pb2.DeviceProfile:
    def serve(_: link_trial.LinkTrials) -> None:
        raise DoneError

    monkeypatch.setattr(link_trial.LinkTrials, "serve", serve)
    network = Network()
    port = MemoryPort(network)
    network.ports[0] = port
    try:
        with pytest.raises(DoneError):
            main.run(port, assignment(job))
        assert port.reported("ready")
        [found] = port.reported("device_profile")
    finally:
        network.close()
    assert isinstance(found, local_pb2.DeviceProfile)
    return found


def column(profile: local_pb2.DeviceProfile, name: str) -> list[int]:
    return [getattr(layer, name) for layer in profile.layers]
