"""Which worker and device each stage gets, what is refused, and who is awaited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pipesvc.core.placement import reachable_first
from pipesvc.core.plan import LayerInfo, Plan, StrategySettings, WorkerInfo
from pipesvc.core.planner import MissingWorkers, make_plan
from pipesvc.errors import ErrorCode, PipesvcError

CPU = ("cpu",)
GPU = ("cpu", "cuda:0")


def _layers(*marks: str) -> list[LayerInfo]:
    return [
        LayerInfo(name=str(index), type="Linear", mark=mark, parameter_bytes=4 << index)
        for index, mark in enumerate(marks)
    ]


def _workers(**devices: tuple[str, ...]) -> list[WorkerInfo]:
    return [WorkerInfo(name=name, host=name, boot_id=name, devices=found) for name, found in devices.items()]


def _settings(**changes: Any) -> StrategySettings:
    return StrategySettings(**{"micro_batches": 4, **changes})


def _plan(layers: list[LayerInfo], workers: list[WorkerInfo], **changes: Any) -> Plan:
    plan = make_plan(_settings(**changes), layers, workers)
    assert isinstance(plan, Plan), plan
    return plan


def _missing(layers: list[LayerInfo], workers: list[WorkerInfo], **changes: Any) -> MissingWorkers:
    missing = make_plan(_settings(**changes), layers, workers)
    assert isinstance(missing, MissingWorkers), missing
    return missing


def _refusal(layers: list[LayerInfo], workers: list[WorkerInfo], **changes: Any) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        make_plan(_settings(**changes), layers, workers)
    return caught.value


def _shape(plan: Plan) -> list[tuple[str, str, str]]:
    """Per stage: its layers, and its place."""
    return [(" ".join(stage.layer_names), stage.worker, stage.device) for stage in plan.stages]


def test_marks_go_to_workers_of_their_kind_in_registration_order() -> None:
    plan = _plan(_layers("gpu:1", "cpu", "gpu:0", "cpu:b"), _workers(g=("cpu", "cuda:0", "cuda:1"), a=CPU, b=CPU))
    assert [(stage.worker, stage.device) for stage in plan.stages] == [
        ("g", "cuda:1"),
        ("a", "cpu"),
        ("g", "cuda:0"),
        ("b", "cpu"),
    ]


def test_gpus_are_counted_over_the_cluster() -> None:
    plan = _plan(_layers("gpu:0", "gpu:2"), _workers(a=("cpu", "cuda:0", "cuda:1"), b=CPU, c=("cuda:0",)))
    assert [(stage.worker, stage.device) for stage in plan.stages] == [("a", "cuda:0"), ("c", "cuda:0")]


def test_one_host_with_a_gpu_can_hold_a_cpu_group_and_a_gpu_group() -> None:
    plan = _plan(_layers("cpu", "gpu:0"), _workers(a=GPU))
    assert _shape(plan) == [("0", "a", "cpu"), ("1", "a", "cuda:0")]


def test_unmarked_stages_take_the_best_device() -> None:
    plan = _plan(_layers("", ""), _workers(a=CPU, b=GPU))
    assert _shape(plan) == [("0", "a", "cpu"), ("1", "b", "cuda:0")]


def test_a_cpu_worker_stands_in_for_a_gpu_only_when_allowed() -> None:
    workers = _workers(a=CPU, b=CPU)
    error = _refusal(_layers("cpu", "gpu:0"), workers)
    assert error.code is ErrorCode.UNKNOWN_DEVICE
    assert "it has 0 (a: cpu; b: cpu)" in str(error)
    plan = _plan(_layers("cpu", "gpu:0"), workers, allow_cpu_for_gpu=True)
    assert _shape(plan) == [("0", "a", "cpu"), ("1", "b", "cpu")]
    assert [stage.label for stage in plan.stages] == ["cpu", "gpu:0"]
    with_gpu = _plan(_layers("cpu", "gpu:0"), _workers(a=GPU, b=CPU), allow_cpu_for_gpu=True)
    assert _shape(with_gpu) == [("0", "b", "cpu"), ("1", "a", "cuda:0")]


def test_placement_overrides_and_may_put_several_stages_on_one_worker() -> None:
    placement = {"cpu": "b/cuda:0", "gpu:0": "b", "cpu:x": "b/cpu"}
    plan = _plan(_layers("cpu", "gpu:0", "cpu:x"), _workers(a=CPU, b=GPU), placement=placement)
    assert _shape(plan) == [("0", "b", "cuda:0"), ("1", "b", "cuda:0"), ("2", "b", "cpu")]
    assert plan.workers == ("b",)


def test_p07_a_device_that_the_named_worker_lacks_is_refused() -> None:
    error = _refusal(_layers("cpu", "gpu:7"), _workers(a=CPU, b=GPU), placement={"gpu:7": "b/cuda:7"})
    assert error.code is ErrorCode.UNKNOWN_DEVICE
    assert "worker 'b', which has no device 'cuda:7'. Worker 'b' has cpu, cuda:0" in str(error)


def test_p07_a_gpu_that_the_cluster_lacks_is_refused_with_what_there_is() -> None:
    error = _refusal(_layers("cpu", "gpu:7"), _workers(a=CPU, b=GPU))
    assert error.code is ErrorCode.UNKNOWN_DEVICE
    assert "mark 'gpu:7' names a GPU that the cluster does not have: it has 1 (a: cpu; b: cpu, cuda:0)" in str(error)


def test_a_worker_named_without_device_must_have_the_kind() -> None:
    def code(worker: str, **changes: Any) -> ErrorCode:
        workers = _workers(a=CPU, c=("cuda:0",))
        return _refusal(_layers("cpu", "gpu:0"), workers, placement={"gpu:0" if worker == "a" else "cpu": worker}).code

    assert code("a") is ErrorCode.UNKNOWN_DEVICE
    assert code("c") is ErrorCode.UNKNOWN_DEVICE


def test_an_unknown_worker_is_refused_with_the_valid_names() -> None:
    error = _refusal(_layers("", ""), _workers(a=CPU, b=CPU), placement={"stage:0": "nobody"})
    assert error.code is ErrorCode.UNKNOWN_WORKER
    assert "names worker 'nobody', which is not registered. Registered: a, b" in str(error)


# --- Waiting ---


@pytest.mark.parametrize(
    ("marks", "workers", "changes", "text"),
    [
        (("",), {}, {}, "0 of 1 workers, waiting for one more worker for 'stage:0'"),
        (
            ("", "", ""),
            {"a": CPU, "b": CPU},
            {"num_stages": 3},
            "2 of 3 workers, waiting for one more worker for 'stage:2'",
        ),
        (("cpu", "gpu:0"), {"a": CPU}, {}, "1 of 2 workers, waiting for a worker with the GPU for 'gpu:0'"),
        (("cpu", "cpu:b"), {"a": CPU}, {}, "1 of 2 workers, waiting for one more worker with a CPU for 'cpu:b'"),
        (
            ("cpu", "gpu:0"),
            {"a": CPU},
            {"allow_cpu_for_gpu": True},
            "1 of 2 workers, waiting for one more worker with a CPU for 'gpu:0'",
        ),
        (("cpu", "gpu:0"), {"a": CPU}, {"placement": {"gpu:0": "late"}}, "1 of 2 workers, waiting for worker 'late'"),
    ],
)
def test_f19_workers_that_may_still_come_are_awaited_by_name(
    marks: tuple[str, ...], workers: Mapping[str, tuple[str, ...]], changes: dict[str, Any], text: str
) -> None:
    missing = _missing(_layers(*marks), _workers(**workers), **changes)
    assert missing.text == text
    assert missing.num_need - missing.num_have == len(missing.missing) == 1


def test_without_a_number_of_stages_the_workers_that_are_there_suffice() -> None:
    assert _plan(_layers("", "", ""), _workers(a=CPU)).num_stages == 1
    assert _plan(_layers("", ""), _workers(a=CPU, b=CPU, c=CPU)).num_stages == 2


def test_slots_are_filled_without_workers_that_others_cannot_reach() -> None:
    workers = [WorkerInfo(name=name, devices=("cpu",)) for name in ("a", "l", "b")]
    assert reachable_first(workers, []) == workers
    ordered = reachable_first(workers, [("a", "l"), ("b", "l"), ("l", "l")])
    assert [worker.name for worker in ordered] == ["a", "b", "l"]
    # Who cannot dial anyone is the one in trouble, not those that it cannot dial.
    assert [worker.name for worker in reachable_first(workers, [("a", "l"), ("a", "b")])] == ["l", "b", "a"]
