"""The executor from its assignment to its end, and what it refuses before it is ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipesvc.core.plan import Plan, StagePlan
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.worker import inspector
from pipesvc.worker.executor import main
from pipesvc.worker.executor.routes import input_link, label_link
from tests.unit.executor import user_code
from tests.unit.executor.memory_network import MemoryPort, Network

CODE = "tests.unit.executor.user_code"


def make_job(**changes: Any) -> job_pb2.JobSpec:
    job = job_pb2.JobSpec(
        name="test",
        model=types_pb2.Call(target=f"{CODE}:build", arguments_json='{"width": 5}'),
        loss=types_pb2.Call(target=f"{CODE}:loss"),
        optimizer=types_pb2.Call(target="torch.optim:SGD", arguments_json='{"lr": 0.1}'),
        data=job_pb2.DataSpec(source=types_pb2.Call(target=f"{CODE}:source"), has_labels=True),
        seed=11,
    )
    for name, target in changes.items():
        getattr(job, name).target = target
        getattr(job, name).arguments_json = ""
    return job


def make_plan(owners: list[str], bounds: list[int]) -> Plan:
    stages = tuple(
        StagePlan(
            index=index,
            label=f"stage:{index}",
            worker=owner,
            device="cpu",
            first_layer=bounds[index],
            end_layer=bounds[index + 1],
            layer_names=tuple(str(layer) for layer in range(bounds[index], bounds[index + 1])),
        )
        for index, owner in enumerate(owners)
    )
    return Plan(stages=stages, schedule="1F1B", micro_batches=2, feeder_worker=owners[0], threads={})


def make_assignment(job: job_pb2.JobSpec, plan: Plan, worker: str) -> local_pb2.Assignment:
    return local_pb2.Assignment(
        run_id="run-1", job=job, plan_json=plan.to_json(), worker=worker, host="host-1", num_threads=2
    )


@pytest.fixture
def port() -> Iterator[MemoryPort]:
    network = Network()
    made = MemoryPort(network)
    network.ports |= {0: made, 1: made}
    yield made
    network.close()


def test_a_run_from_assignment_to_stop(port: MemoryPort) -> None:
    port.send_parcel(input_link(0), 1, 0, torch.ones(2, 3))
    port.send_parcel(label_link(2), 1, 0, torch.ones(2, 2))
    port.tell(issue_step=local_pb2.IssueStep(step=1, shares=[1.0], rows=[2]))
    assignment = make_assignment(make_job(), make_plan(["a", "a"], [0, 2, 3]), "a")
    thread = threading.Thread(target=main.run, args=(port, assignment))
    thread.start()
    while len(port.reported("step_applied")) < 2 and thread.is_alive():
        thread.join(0.01)
    port.tell(stop=local_pb2.Stop(reason="done"))
    thread.join(10)
    assert not thread.is_alive()
    assert port.reported("progress")[0].phase == "building"
    (ready,) = port.reported("ready")
    assert [(each.name, each.num_bytes) for each in ready.parameters] == [
        ("0.weight", 60),
        ("0.bias", 20),
        ("2.weight", 40),
        ("2.bias", 8),
    ]
    assert torch.__version__ in ready.fingerprint
    assert "2 threads" in ready.fingerprint


@pytest.mark.parametrize(
    ("worker", "held"),
    [("a", {0: ["0.weight", "0.bias"], 1: []}), ("b", {2: ["2.weight", "2.bias"]})],
)
def test_a20_each_worker_builds_its_own_layers_with_the_whole_models_numbers(
    worker: str, held: dict[int, list[str]]
) -> None:
    plan = make_plan(["a", "a", "b"], [0, 1, 2, 3])
    stages = main.build_stages(make_job(), plan, worker, Where())
    torch.manual_seed(11)
    whole = user_code.build(5)
    assert {index: list(stage.named_parameters()) for index, stage in stages.items()} == held
    for stage in stages.values():
        for name, ours in stage.named_parameters().items():
            assert torch.equal(ours, whole.get_parameter(name))


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"model": "absent_package:build"}, ErrorCode.IMPORT_FAILED, "worker 'a' cannot import 'absent_package'"),
        ({"model": f"{CODE}:absent"}, ErrorCode.IMPORT_FAILED, f"'{CODE}' on worker 'a' has no 'absent'"),
        ({"model": f"{CODE}:NOT_A_FUNCTION"}, ErrorCode.INVALID_JOB, "is a int, which cannot be called"),
        ({"model": "no colon"}, ErrorCode.INVALID_JOB, "not of the form"),
        ({"model": f"{CODE}:build.<locals>.f"}, ErrorCode.INVALID_JOB, "not of the form"),
        ({"model": f"{CODE}:build_failing"}, ErrorCode.BUILD_FAILED, "building the model: LookupError: no model today"),
        ({"loss": f"{CODE}:absent"}, ErrorCode.IMPORT_FAILED, "has no 'absent'"),
        ({"optimizer": f"{CODE}:no_optimizer"}, ErrorCode.INVALID_JOB, "the optimizer is a int"),
        ({"optimizer": "torch.optim:SGD"}, ErrorCode.BUILD_FAILED, ""),
    ],
)
def test_what_cannot_be_built_is_refused(port: MemoryPort, changes: dict[str, str], code: ErrorCode, text: str) -> None:
    job = make_job(**changes)
    if changes.get("optimizer") == "torch.optim:SGD":
        job.optimizer.arguments_json = '{"learning_rate": 0.1}'
        text = "making the optimizer: TypeError"
    plan = make_plan(["a", "a"], [0, 2, 3])
    with pytest.raises(PipesvcError) as caught:
        main.run(port, make_assignment(job, plan, "a"))
    details = caught.value.details
    assert details.code is code
    assert text in details.message
    assert (details.where.run_id, details.where.worker, details.where.host) == ("run-1", "a", "host-1")
    assert port.reported("ready") == []


def test_labels_without_a_loss_are_refused(port: MemoryPort) -> None:
    job = make_job()
    job.ClearField("loss")
    with pytest.raises(PipesvcError, match="has labels, but the job has no loss") as caught:
        main.run(port, make_assignment(job, make_plan(["a"], [0, 3]), "a"))
    assert caught.value.code is ErrorCode.INVALID_JOB


@pytest.mark.parametrize("arguments", ["{", "[1]", '"text"'])
def test_arguments_that_are_no_object_are_refused(port: MemoryPort, arguments: str) -> None:
    job = make_job()
    job.model.arguments_json = arguments
    with pytest.raises(PipesvcError, match="arguments of the model") as caught:
        main.run(port, make_assignment(job, make_plan(["a"], [0, 3]), "a"))
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_inspector_reports_the_layers(port: MemoryPort) -> None:
    inspector.run(port, local_pb2.Assignment(run_id="run-1", job=make_job(), worker="a"))
    first, inspected = port.reported("inspected")
    assert (first.is_trying, inspected.is_trying) == (True, False)
    assert first.layers == inspected.layers
    assert [(each.name, each.type, each.parameter_bytes) for each in inspected.layers] == [
        ("0", "Linear", 80),
        ("1", "Dropout", 0),
        ("2", "Linear", 48),
    ]


@pytest.mark.parametrize("role", ["model", "loss", "optimizer", "source"])
def test_inspector_refuses_what_does_not_import(port: MemoryPort, role: str) -> None:
    job = make_job()
    call = job.data.source if role == "source" else getattr(job, role)
    call.target = "absent_package:thing"
    with pytest.raises(PipesvcError, match="absent_package") as caught:
        inspector.run(port, local_pb2.Assignment(run_id="run-1", job=job, worker="a"))
    assert caught.value.code is ErrorCode.IMPORT_FAILED
    assert caught.value.details.exception_type == "ModuleNotFoundError"
