"""What the inspector finds of a model that is no list: units and flow, or why there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipesvc.core.flow import transfers
from pipesvc.core.flow_json import from_json
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import skeleton
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.wire import samples
from pipesvc.worker import calls, inspector
from pipesvc.worker.forward_inspection import follow
from pipesvc.worker.inspection import Inspection
from pipesvc.worker.progress import ProgressReporter
from tests.unit.executor.memory_network import MemoryPort, Network
from tests.unit.worker import module_code

CODE = "tests.unit.worker.module_code"
UNITS = ["first", "blocks.0", "blocks.1", "last"]
PARTS = [*UNITS[:3], "last.one", "last.two"]


def make_job(model: str = "Skip", source: str = "rows", **strategy: Any) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(
        model=types_pb2.Call(target=f"{CODE}:{model}"),
        loss=types_pb2.Call(target=f"{CODE}:loss"),
        optimizer=types_pb2.Call(target="torch.optim:SGD", arguments_json='{"lr": 0.1}'),
        data=job_pb2.DataSpec(
            source=types_pb2.Call(target=f"{CODE}:{source}"),
            yields=job_pb2.YIELDS_SAMPLE,
            batch_size=4,
            has_labels=True,
            timeout_s=20,
        ),
        strategy=job_pb2.StrategySpec(**{"is_pipelined": True, "micro_batches": 2, **strategy}),
        seed=11,
    )


@pytest.fixture
def port() -> Iterator[MemoryPort]:
    num_threads = torch.get_num_threads()
    network = Network()
    made = network.ports[0] = MemoryPort(network)
    yield made
    network.close()
    torch.set_num_threads(num_threads)


def inspected(port: MemoryPort, job: job_pb2.JobSpec) -> local_pb2.Inspected:
    inspector.run(port, local_pb2.Assignment(run_id="r", job=job, worker="a", host="h"))
    *_, found = port.reported("inspected")
    assert isinstance(found, local_pb2.Inspected)
    return found


def names(found: local_pb2.Inspected) -> list[str]:
    return [layer.name for layer in found.layers]


@pytest.mark.parametrize("strategy", [{}, {"num_stages": 1}, {"is_pipelined": False}])
def test_a_module_has_units_and_a_flow_for_any_number_of_stages(port: MemoryPort, strategy: dict[str, Any]) -> None:
    found = inspected(port, make_job(**strategy))
    assert names(found) == UNITS
    assert [layer.mark for layer in found.layers] == ["cpu:first", "", "", ""]
    assert (found.HasField("no_flow"), found.HasField("misfit")) == (False, False)
    flow = from_json(found.flow_json)
    assert [unit.name for unit in flow.units] == UNITS
    assert list(transfers(flow, (1, 3, 4))) == [(0, 1), (0, 2), (1, 2)]


def test_the_state_of_the_optimizer_is_told(port: MemoryPort) -> None:
    job = make_job()
    assert inspected(port, job).state_per_gradient == 0
    job.optimizer.target = "torch.optim:AdamW"
    assert inspected(port, job).state_per_gradient == 2


def test_the_inputs_of_a_flow_are_in_the_order_of_the_batch(port: MemoryPort) -> None:
    found = inspected(port, make_job(source="named_rows"))
    assert from_json(found.flow_json).input_users == {"bias": (3,), "x": (0,)}


def test_boundaries_by_name_open_what_encloses_them(port: MemoryPort) -> None:
    assert names(inspected(port, make_job("Nested"))) == UNITS
    found = inspected(port, make_job("Nested", boundary_names=["blocks.1", "last.two"]))
    assert names(found) == PARTS


def test_a_list_has_layers_and_no_flow(port: MemoryPort) -> None:
    job = make_job()
    job.model.target = "tests.unit.executor.user_code:build"
    found = inspected(port, job)
    assert names(found) == ["0", "1", "2"]
    assert (found.flow_json, found.HasField("no_flow")) == ("", False)


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        (make_job("Reader"), ErrorCode.INVALID_JOB, "`.item()` at tests/unit/worker/module_code.py:"),
        (make_job(boundary_names=["block"]), ErrorCode.INVALID_PLAN, "cut 'block' does not exist"),
        (
            make_job("Pair", "other_names"),
            ErrorCode.INVALID_JOB,
            "a dict with 'y', 'z') do not fit the model's forward",
        ),
        (make_job(source="failing"), ErrorCode.DATA_SOURCE_FAILED, "worker 'a' cannot read it: the data source in"),
        (make_job("Narrow"), ErrorCode.STAGE_FAILED, "forward(float32 (2, 3)) of Narrow, on shapes alone: Runtime"),
        (
            make_job(source="other_names"),
            ErrorCode.STAGE_FAILED,
            "forward({'y': float32 (2, 2), 'z': float32 (2, 2)}) of",
        ),
    ],
)
def test_a_forward_that_cannot_be_followed_is_reported_with_the_reason(
    port: MemoryPort, job: job_pb2.JobSpec, code: ErrorCode, said: str
) -> None:
    found = inspected(port, job)
    assert names(found) == UNITS
    assert (found.flow_json, found.no_flow.code, found.no_flow.worker) == ("", code.value, "a")
    assert said in found.no_flow.message


def streamed(sample: job_pb2.Sample | None) -> job_pb2.JobSpec:
    job = make_job()
    job.data.ClearField("source")
    job.data.is_streamed = True
    if sample is not None:
        job.data.first.CopyFrom(sample)
    return job


def test_of_a_stream_the_inputs_that_came_along_are_followed(port: MemoryPort) -> None:
    plain = inspected(port, make_job())
    found = inspected(port, streamed(samples.encode(torch.ones(2, 3))))
    assert not found.no_flow.code
    assert found.flow_json == plain.flow_json


@pytest.mark.parametrize(
    ("sample", "said"), [(None, "its client sent none along"), (job_pb2.Sample(absent="it is late"), "it is late")]
)
def test_a_stream_without_a_first_batch_has_no_flow(port: MemoryPort, sample: job_pb2.Sample | None, said: str) -> None:
    found = inspected(port, streamed(sample))
    assert names(found) == UNITS
    assert found.no_flow.code == ErrorCode.INVALID_JOB.value
    assert f"there is none of the stream: {said}" in found.no_flow.message
    assert "use a DataSource" in found.no_flow.advice


def test_a13_what_the_data_meets_in_a_module_is_told_with_the_unit(port: MemoryPort) -> None:
    found = inspected(port, make_job("Narrow"))
    assert found.misfit.layer == UNITS.index("last")
    assert "the first micro-batch does not pass the model: forward of Narrow on " in found.misfit.error.message


def test_a_source_that_takes_too_long_is_given_up_with_the_reason(port: MemoryPort) -> None:
    job = make_job(source="late")
    job.data.timeout_s = 0.05
    where = Where(worker="a")
    build = calls.bind(job.model, "the model", where)
    found = Inspection(layers=skeleton.layer_infos(inspector._parts(build, job, where)), model_bytes=0)
    given_up = threading.Event()
    seen: list[local_pb2.Inspected] = []

    def give_up() -> None:
        seen.append(inspector._message(found, None))
        given_up.set()
        module_code.RELEASED.set()

    module_code.RELEASED.clear()
    follow(found, job, build, where, ProgressReporter(port), give_up)
    assert given_up.is_set()
    assert names(seen[0]) == UNITS
    assert seen[0].no_flow.code == ErrorCode.DATA_SOURCE_TIMED_OUT.value
    assert "none came within 0.05 s" in seen[0].no_flow.message


@pytest.mark.parametrize(("pattern", "joined"), [("last", [(3, 4)]), ("last.*", [])])
def test_what_is_recomputed_as_one_is_not_cut(port: MemoryPort, pattern: str, joined: list[tuple[int, int]]) -> None:
    found = inspected(port, make_job("Nested", boundary_names=["last.two"], recompute_patterns=[pattern]))
    flow = from_json(found.flow_json)
    assert [(each.first, each.last) for each in flow.joined] == joined


def test_a_pattern_that_matches_nothing_is_refused(port: MemoryPort) -> None:
    with pytest.raises(PipesvcError, match=r"recompute has 'block\.9', which is the name of no module"):
        inspected(port, make_job(recompute_patterns=["first", "block.9"]))
