"""Profiles from real workers: what is measured is true, kept, and leaves runs as they would have been."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import pipesvc
from pipesvc.core.costs_json import from_json
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs

FLOAT = 4
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def cluster(state_dir: Path) -> Iterator[pipesvc.Client]:
    """Two CPU workers with one thread each."""
    with pipesvc.LocalCluster(num_workers=2, num_threads=1, state_dir=state_dir) as client:
        yield client


def make_job(**changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": pipesvc.Call(jobs.mlp, depth=1),
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.Adam, lr=0.01),
        "data": pipesvc.DataSource(jobs.samples, batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=2),
        "seed": 7,
    }
    return pipesvc.Job(**(options | changes))


def trained(cluster: pipesvc.Client, job: pipesvc.Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    run = cluster.submit(job)
    run.wait()
    return run.losses(), run.state_dict()


def test_a03_layers_devices_and_links_are_measured_and_runs_stay_as_they_are(cluster: pipesvc.Client) -> None:
    job = make_job(model=jobs.with_noise)
    losses, state = trained(cluster, job)
    found = cluster.profile(job)
    assert (found.num_devices_measured, found.num_links_measured) == (2, 2)
    costs = found.costs
    width, classes, rows = jobs.WIDTH, jobs.NUM_CLASSES, 2
    linear = (width * width + width) * FLOAT
    last = (width * classes + classes) * FLOAT
    assert costs.micro_batch_rows == rows
    assert [(layer.name, layer.type) for layer in costs.layers] == [
        ("0", "Linear"),
        ("1", "BatchNorm1d"),
        ("2", "Dropout"),
        ("3", "Linear"),
    ]
    assert [layer.parameter_bytes for layer in costs.layers] == [linear, 2 * width * FLOAT, 0, last]
    assert [layer.gradient_bytes for layer in costs.layers] == [linear, 2 * width * FLOAT, 0, last]
    assert [layer.optimizer_bytes for layer in costs.layers] == [
        2 * linear + 2 * FLOAT,
        4 * width * FLOAT + 2 * FLOAT,
        0,
        2 * last + 2 * FLOAT,
    ]
    assert costs.layers[1].buffer_bytes == 2 * width * FLOAT + 8
    assert [layer.output_bytes for layer in costs.layers] == [rows * width * FLOAT] * 3 + [0]
    assert [layer.output_gradient_bytes for layer in costs.layers] == [rows * width * FLOAT] * 3 + [0]
    assert sorted((device.worker, device.device) for device in costs.devices) == [
        ("worker-0", "cpu"),
        ("worker-1", "cpu"),
    ]
    for device in costs.devices:
        assert device.memory_bytes > 0
        assert all(0 < each < 1 for each in (*device.times.forward_s, *device.times.backward_s))
    assert costs.links.keys() == {("worker-0", "worker-1"), ("worker-1", "worker-0")}
    assert all(0 < link.latency_s < 1 and link.bytes_per_s > 1e5 for link in costs.links.values())
    again_losses, again_state = trained(cluster, job)
    assert again_losses == losses
    assert all(torch.equal(again_state[name], value) for name, value in state.items())


def test_what_was_measured_is_kept_and_a_changed_model_is_measured(cluster: pipesvc.Client) -> None:
    first = cluster.profile(make_job())
    assert first.num_devices_measured == 2
    known = cluster.profile(make_job(name="by another name", strategy=pipesvc.Strategy(micro_batches=4)))
    assert (known.num_devices_measured, known.num_links_measured) == (0, 0)
    assert known.costs == first.costs
    changed = cluster.profile(make_job(model=pipesvc.Call(jobs.sleepy, num_layers=2, pause_s=0.02)))
    assert (changed.num_devices_measured, changed.num_links_measured) == (2, 0)
    assert all(each >= 0.02 for device in changed.costs.devices for each in device.times.forward_s)
    fresh = cluster.profile(make_job(), is_fresh=True)
    assert (fresh.num_devices_measured, fresh.num_links_measured) == (2, 2)


def test_a_profile_waits_for_the_run_on_the_workers(cluster: pipesvc.Client) -> None:
    slow = pipesvc.Call(jobs.sleepy, num_layers=2, pause_s=0.05)
    run = cluster.submit(make_job(model=slow))
    told: list[str] = []

    def note(awaited: Any) -> None:
        told.extend(line.what for line in awaited)
        if told == [f"the end of run {run.run_id}"]:
            run.cancel()

    found = cluster.profile(make_job(seed=8), on_event=note)
    assert run.state == "CANCELLED"
    assert found.num_devices_measured == 2
    assert "its start" in told[1:]


@pytest.mark.parametrize(
    ("changes", "code", "texts"),
    [
        (
            {"model": pipesvc.Call(jobs.faulty, kind="raise")},
            ErrorCode.STAGE_FAILED,
            ["layer '2' (Faulty) on cpu", "boom"],
        ),
        (
            {"model": pipesvc.Call(jobs.faulty, kind="segfault")},
            ErrorCode.CHILD_DIED,
            ["the profiler was killed by SIGSEGV"],
        ),
        (
            {"data": pipesvc.DataSource(pipesvc.Call(jobs.source_that_raises, num_rows=4), batch_size=8)},
            ErrorCode.DATA_SOURCE_FAILED,
            ["reads a first batch on every worker", "row 17 is torn"],
        ),
        ({"data": pipesvc.StreamSource([], batch_size=8)}, ErrorCode.INVALID_JOB, ["streamed by the client"]),
    ],
)
def test_what_cannot_be_measured_is_named_and_the_workers_are_free_again(
    cluster: pipesvc.Client, changes: dict[str, Any], code: ErrorCode, texts: list[str]
) -> None:
    with pytest.raises(PipesvcError) as caught:
        cluster.profile(make_job(**changes))
    assert caught.value.code is code
    assert all(text in str(caught.value) for text in texts)
    if code is not ErrorCode.INVALID_JOB:
        assert caught.value.details.where.worker in ("worker-0", "worker-1")
    assert idle_within(cluster, LIMIT_S)


def idle_within(cluster: pipesvc.Client, limit_s: float) -> bool:
    """Whether the workers come to say that nothing is left of the last profile."""
    deadline = time.monotonic() + limit_s
    while any(worker.children for worker in cluster.status().workers):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_the_command_prints_tables_and_json(cluster: pipesvc.Client, state_dir: Path) -> None:
    def command(*options: str) -> str:
        place = ("--coordinator", cluster.address, "--token-file", str(state_dir / "token"))
        job = str(Path(__file__).with_name("small.py")) + ":job"
        arguments = [sys.executable, "-m", "pipesvc", "profile", job, *place, *options]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout

    lines = command().splitlines()
    assert lines[0].startswith("micro-batch of 2 rows; measured now: 2 devices, ")
    assert lines[1].split()[:5] == ["LAYER", "TYPE", "PARAMETERS", "ACTIVATIONS", "OUTPUT"]
    assert lines[2].split()[:4] == ["0", "Linear", "80", "bytes"]
    costs = from_json(command("--json"))
    assert [layer.type for layer in costs.layers] == ["Linear", "Tanh", "Linear"]


def test_f03_a_worker_that_dies_is_named(cluster: pipesvc.Client, state_dir: Path) -> None:
    """The last test here, since a killed worker does not come back."""
    words = {"worker-1", str(state_dir / "token")}
    children = psutil.Process().children(recursive=True)
    [agent] = [process for process in children if words <= set(process.cmdline())]
    is_killed = threading.Event()

    def note(awaited: Any) -> None:
        if not is_killed.is_set() and any("measuring layer" in line.what for line in awaited):
            is_killed.set()
            agent.kill()

    slow = pipesvc.Call(jobs.sleepy, num_layers=4, pause_s=1.0)
    with pytest.raises(PipesvcError) as caught:
        cluster.profile(make_job(model=slow), on_event=note)
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert caught.value.details.where.worker == "worker-1"
