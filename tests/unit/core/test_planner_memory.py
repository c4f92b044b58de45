"""What a plan is refused for though nobody has measured its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipesvc.core.plan import LayerInfo, Plan, StrategySettings, WorkerInfo
from pipesvc.core.planner import make_plan
from pipesvc.errors import ErrorCode, PipesvcError

GPU = ("cpu", "cuda:0")


def make(layers: list[LayerInfo], workers: list[WorkerInfo], **changes: Any) -> Plan:
    plan = make_plan(StrategySettings(micro_batches=4, **changes), layers, workers)
    assert isinstance(plan, Plan), plan
    return plan


def refusal(layers: list[LayerInfo], workers: list[WorkerInfo], **changes: Any) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        make(layers, workers, **changes)
    return caught.value


def heavy(num_layers: int) -> list[LayerInfo]:
    """Each has 1 KiB of weights, as much of gradients, and half of it of buffers."""
    return [
        LayerInfo(name=str(index), type="Linear", parameter_bytes=1024, gradient_bytes=1024, buffer_bytes=512)
        for index in range(num_layers)
    ]


@pytest.mark.parametrize("placed", ["a/cpu", "a/cuda:0"])
def test_p04_weights_gradients_and_buffers_alone_must_fit_without_any_measurement(placed: str) -> None:
    """A CPU has its worker's memory, which is at most what `--memory` says; of a GPU that alone is known here."""
    changes = {"boundaries": (3,), "placement": {"stage:0": placed, "stage:1": "b"}}

    def workers(num_bytes: int) -> list[WorkerInfo]:
        limited = WorkerInfo(name="a", devices=GPU, memory_bytes=num_bytes, memory_limit_bytes=num_bytes)
        return [limited, WorkerInfo(name="b", memory_bytes=99 * 1024)]

    error = refusal(heavy(4), workers(7 * 1024), **changes)
    assert error.code is ErrorCode.INVALID_PLAN
    assert error.details.message == (
        f"the plan does not fit: {placed} would need 3.0 KiB weights + 3.0 KiB gradients + 1.5 KiB buffers = "
        "7.5 KiB of 7.0 KiB"
    )
    assert error.details.advice == "Put fewer layers there, or place them on a worker with more memory."
    make(heavy(4), workers(7680), **changes)
    make(heavy(4), workers(0), **changes)


def test_p04_the_state_of_the_optimizer_counts_where_it_is_known() -> None:
    layers = [replace(layer, optimizer_bytes=2048) for layer in heavy(4)]
    error = refusal(layers, [WorkerInfo(name="a", memory_bytes=17 * 1024)], is_pipelined=False)
    assert "4.0 KiB gradients + 8.0 KiB optimizer state + 2.0 KiB buffers = 18.0 KiB of 17.0 KiB" in str(error)
    make(heavy(4), [WorkerInfo(name="a", memory_bytes=17 * 1024)], is_pipelined=False)


def test_stages_on_one_device_must_fit_together() -> None:
    tight = [WorkerInfo(name=name, memory_bytes=6 * 1024) for name in "ab"]
    make(heavy(4), tight, boundaries=(2,))
    assert "3.0 KiB weights" in str(refusal(heavy(6), tight, schedule="ZBV", num_stages=4))
    assert "4.0 KiB weights" in str(refusal(heavy(4), tight, is_pipelined=False))


def test_a_gpu_has_not_the_memory_of_its_host() -> None:
    small_host = [WorkerInfo(name="a", devices=GPU, memory_bytes=1024)]
    assert make(heavy(4), small_host, placement={"stage:0": "a/cuda:0"}).stages[0].device == "cuda:0"
