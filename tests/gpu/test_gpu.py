"""A stage on a GPU trains as the same stage on a CPU does, within the rounding of another order of sums, and leaves no
memory on the device.

Tolerances: relative 1e-3 on losses of float32 steps (matrix products add in another order on a GPU, and 20 steps carry
that on); TF32 is off by torch's default. Weights after 20 steps: absolute 1e-3.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest
import torch

import pipesvc
from examples import char_lm, embedding_fc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs

# A CPU and a GPU add in different orders, which a run says as it begins.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:workers with different numeric fingerprints")]

LOSS_TOLERANCE = 1e-3
WEIGHT_TOLERANCE = 1e-3


def worker_of(cluster: pipesvc.Client, device: str, skip: int = 0) -> str:
    """The name of a registered worker with this device."""
    found = [w.registration.name for w in cluster.status().workers if w.registration.devices[0].startswith(device)]
    return sorted(found)[skip]


def places(cluster: pipesvc.Client, *devices: str) -> dict[str, str]:
    """stage:0, stage:1 on a worker each, with these kinds of devices."""
    seen: dict[str, int] = {}
    placement = {}
    for index, device in enumerate(devices):
        placement[f"stage:{index}"] = worker_of(cluster, device, seen.get(device, 0))
        seen[device] = seen.get(device, 0) + 1
    return placement


def finish(run: pipesvc.Run) -> tuple[list[float], dict[str, Any]]:
    run.wait()
    return run.losses(), run.state_dict()


def close(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(
        abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in zip(one, other, strict=True)
    )


def char_job(num_steps: int, placement: dict[str, str]) -> pipesvc.Job:
    return pipesvc.Job(
        model=pipesvc.Call(char_lm.build_model, num_blocks=2),
        loss=char_lm.character_loss,
        optimizer=pipesvc.Optimizer(torch.optim.AdamW, lr=1e-3),
        data=pipesvc.DataSource(char_lm.snippets, batch_size=16),
        strategy=pipesvc.Strategy(micro_batches=4, num_stages=2, placement=placement),
        max_steps=num_steps,
        clip_norm=1.0,
    )


@pytest.mark.timeout(300)
def test_a01_a04_char_lm_on_cpu_mixed_and_gpu_agree(cluster: pipesvc.Client) -> None:
    cpu = worker_of(cluster, "cpu")
    on_cpu = cluster.submit(char_job(20, {"stage:0": cpu, "stage:1": cpu}))
    truth_losses, truth_weights = finish(on_cpu)
    assert truth_losses[-1] < truth_losses[0]
    for devices in (("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")):
        run = cluster.submit(char_job(20, places(cluster, *devices)))
        losses, weights = finish(run)
        assert [stage.device.split(":")[0] for stage in run.plan().stages] == list(devices)
        assert close(losses, truth_losses), f"{devices}: {losses} against {truth_losses}"
        for name, value in truth_weights.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=WEIGHT_TOLERANCE)


def test_a01_embedding_fc_as_marked_keeps_the_embedding_off_the_gpu_host(cluster: pipesvc.Client) -> None:
    run = cluster.submit(embedding_fc.make_job(epochs=1))
    losses, _ = finish(run)
    assert losses[-1] < 0.5 * losses[0]
    first, last = run.plan().stages
    assert first.device == "cpu"
    assert last.device.startswith("cuda:")
    held = run.parameters()
    assert set(held[first.worker]) == {"0.weight"}
    assert set(held[last.worker]) == {"1.weight", "1.bias"}


def test_dropout_and_batch_norm_run_on_a_gpu(cluster: pipesvc.Client) -> None:
    """No value is promised across devices here: the generators differ. The run must be sound and repeatable."""
    found = []
    for _ in range(2):
        job = pipesvc.Job(
            model=jobs.with_noise,
            loss=jobs.cross_entropy,
            optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.05),
            data=pipesvc.DataSource(jobs.samples, batch_size=8),
            strategy=pipesvc.Strategy(micro_batches=2, num_stages=2, placement=places(cluster, "cuda", "cuda")),
        )
        found.append(finish(cluster.submit(job)))
    assert found[0][0] == found[1][0]
    assert found[0][1]["1.num_batches_tracked"] == 2 * 10


def free_bytes() -> int:
    return sum(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))


@pytest.mark.parametrize("ending", ["cancel", "kill"])
def test_no_gpu_memory_is_left_after_cancel_and_kill(cluster: pipesvc.Client, ending: str) -> None:
    before = free_bytes()
    job = char_job(100_000, places(cluster, "cpu", "cuda"))
    run = cluster.submit(job)
    steps = run.steps()
    for _ in range(3):
        next(steps)
    assert free_bytes() < before - (100 << 20), "the stage holds memory of the GPU while it runs"
    if ending == "cancel":
        assert run.cancel() == "CANCELLED"
    else:
        executor = gpu_executor(run)
        os.kill(executor.pid, signal.SIGKILL)
        with pytest.raises(PipesvcError) as caught:
            run.wait()
        assert caught.value.code == ErrorCode.CHILD_DIED
    deadline = time.monotonic() + 10
    while free_bytes() < before - (8 << 20):
        assert time.monotonic() < deadline, f"{(before - free_bytes()) >> 20} MiB are still held"
        time.sleep(0.2)


def gpu_executor(run: pipesvc.Run) -> psutil.Process:
    """The youngest descendant of the GPU stage's agent that maps the driver: its executor."""
    worker = run.plan().stages[1].worker
    (agent,) = [p for p in psutil.Process().children(recursive=True) if {"worker", worker} <= set(p.cmdline())]
    with_driver = [
        child
        for child in agent.children(recursive=True)
        if any("nvidia" in open_file for open_file in descriptors(child))
    ]
    return max(with_driver, key=lambda child: child.create_time())


def descriptors(process: psutil.Process) -> list[str]:
    folder = f"/proc/{process.pid}/fd"
    return [os.readlink(f"{folder}/{name}") for name in os.listdir(folder) if os.path.islink(f"{folder}/{name}")]


def test_p07_a_gpu_that_is_not_there_is_refused_by_its_worker(cluster: pipesvc.Client) -> None:
    placement = {"stage:0": f"{worker_of(cluster, 'cuda')}/cuda:31"}
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=1, placement=placement)
    with pytest.raises(PipesvcError, match="cuda:31") as caught:
        cluster.submit(
            pipesvc.Job(
                model=jobs.mlp,
                loss=jobs.cross_entropy,
                optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
                data=pipesvc.DataSource(jobs.samples, batch_size=8),
                strategy=strategy,
            )
        )
    assert caught.value.code == ErrorCode.UNKNOWN_DEVICE
