"""Metrics and evaluation data are tried when a job is submitted, not at the first evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.worker import inspector
from tests.unit.executor.memory_network import MemoryPort, Network
from tests.unit.worker.test_forward_inspection import CODE, make_job


@pytest.fixture
def port() -> Iterator[MemoryPort]:
    num_threads = torch.get_num_threads()
    network = Network()
    made = network.ports[0] = MemoryPort(network)
    yield made
    network.close()
    torch.set_num_threads(num_threads)


def make_evaluated(metric: str, source: str = "rows", *, is_streamed: bool = False) -> job_pb2.JobSpec:
    job = make_job()
    job.evaluation.data.CopyFrom(job.data)
    job.evaluation.data.source.target = f"{CODE}:{source}"
    job.evaluation.micro_batches = 2
    job.evaluation.metrics.add(name="spread", call=types_pb2.Call(target=f"{CODE}:spread"))
    job.evaluation.metrics.add(name="asked", call=types_pb2.Call(target=f"{CODE}:{metric}"))
    if is_streamed:
        job.data.ClearField("source")
        job.data.is_streamed = True
    return job


def misfit(port: MemoryPort, job: job_pb2.JobSpec) -> local_pb2.DataMisfit:
    inspector.run(port, local_pb2.Assignment(run_id="r", job=job, worker="a", host="h"))
    *_, found = port.reported("inspected")
    assert isinstance(found, local_pb2.Inspected)
    return found.misfit


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("metric", "code", "said"),
    [
        ("broken_metric", ErrorCode.STAGE_FAILED, "the metric 'asked' on float32 (2, 2), float32 (2, 2): ZeroDivision"),
        ("whole_output", ErrorCode.INVALID_JOB, "the metric 'asked' gave float32 (2, 2), not a number"),
    ],
)
def test_a13_a_metric_that_fails_is_refused_by_its_name(
    port: MemoryPort, metric: str, code: ErrorCode, said: str, is_streamed: bool
) -> None:
    found = misfit(port, make_evaluated(metric, is_streamed=is_streamed))
    assert found.error.code == code.value
    assert f"the first micro-batch of the evaluation data does not pass the model: {said}" in found.error.message
    assert found.layer == 3  # the worker of the last unit is the one that will ask it
    assert not found.error.HasField("step")


@pytest.mark.parametrize(
    ("source", "said", "layer"),
    [
        ("wide_rows", "the evaluation data does not pass the model: forward of Skip on", 0),
        ("failing", "the evaluation data source in epoch 0: LookupError: no file here", None),
    ],
)
def test_a13_evaluation_data_that_does_not_fit_is_refused(
    port: MemoryPort, source: str, said: str, layer: int | None
) -> None:
    found = misfit(port, make_evaluated("spread", source))
    assert said in found.error.message
    assert (found.layer if found.HasField("layer") else None) == layer


@pytest.mark.parametrize("metric", ["spread", "trains_metric"])
def test_metrics_are_asked_as_an_evaluation_asks_them(port: MemoryPort, metric: str) -> None:
    assert not misfit(port, make_evaluated(metric)).HasField("error")
