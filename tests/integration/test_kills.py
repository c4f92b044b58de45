"""kill -9 of any one process ends the run with a named error within seconds, and leaves nothing behind.

Each test has a cluster of its own, because a killed process does not come back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest
import torch

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs

BOUND_S = 10.0


def endless_job() -> pipesvc.Job:
    return pipesvc.Job(
        model=pipesvc.Call(jobs.mlp, depth=2),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(pipesvc.Call(jobs.slow_samples, num_rows=100_000, pause_s=0.01), batch_size=8),
        strategy=pipesvc.Strategy(micro_batches=4, num_stages=2),
    )


@pytest.fixture
def cluster() -> Iterator[pipesvc.Client]:
    with pipesvc.LocalCluster(num_workers=2, num_threads=1) as started:
        yield started


def processes_with(cluster: pipesvc.Client, *words: str) -> list[psutil.Process]:
    """Descendants of this test that belong to the cluster, and whose command line holds all the words."""
    words = (*words, str(cluster._transport.address))
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if set(words) <= set(process.cmdline()):
                found.append(process)
    return found


def nursery_of(agent: psutil.Process) -> psutil.Process:
    (nursery,) = agent.children()
    return nursery


def children_of(agent: psutil.Process) -> list[psutil.Process]:
    return nursery_of(agent).children(recursive=True)


def started_run(cluster: pipesvc.Client) -> pipesvc.Run:
    run = cluster.submit(endless_job())
    steps = run.steps()
    for _ in range(3):
        next(steps)
    return run


def kill_and_wait(run: pipesvc.Run, victim: psutil.Process) -> tuple[PipesvcError, float]:
    started = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(PipesvcError) as caught:
        run.wait()
    return caught.value, time.monotonic() - started


def wait_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=BOUND_S)
    assert not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def agent_of(cluster: pipesvc.Client, worker: str) -> psutil.Process:
    (process,) = processes_with(cluster, "worker", worker)
    return process


def test_f03_a24_a_killed_worker_ends_the_run_by_name_and_takes_its_children_along(
    cluster: pipesvc.Client,
) -> None:
    run = started_run(cluster)
    worker = run.plan().stages[1].worker
    victim = agent_of(cluster, worker)
    orphans = [nursery_of(victim), *children_of(victim)]
    assert len(orphans) > 1, "the worker has an executor"
    error, took_s = kill_and_wait(run, victim)
    assert error.code == ErrorCode.WORKER_LOST
    assert worker in str(error)
    assert took_s < BOUND_S
    wait_gone(orphans)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_killed_child_is_named_and_its_worker_serves_the_next_run(cluster: pipesvc.Client, which: int) -> None:
    """One worker has the executor of stage 0, the feeder, and the nursery of both; each may go."""
    run = started_run(cluster)
    worker = run.plan().feeder_worker
    agent = agent_of(cluster, worker)
    error, took_s = kill_and_wait(run, [*children_of(agent), nursery_of(agent)][which])
    assert error.code == ErrorCode.CHILD_DIED
    assert "SIGKILL" in str(error)
    assert worker in str(error)
    assert took_s < BOUND_S
    next_run = cluster.submit(endless_job())
    assert next(next_run.steps()).index == 1
    next_run.cancel()
    with pytest.raises(PipesvcError) as caught:
        next_run.wait()
    assert caught.value.code == ErrorCode.RUN_CANCELLED


def test_f24_a_killed_coordinator_is_named_and_workers_end_their_children(cluster: pipesvc.Client) -> None:
    run = started_run(cluster)
    (victim,) = processes_with(cluster, "coordinator", "--listen")
    agents = [agent_of(cluster, name) for name in run.plan().workers]
    children = [child for agent in agents for child in children_of(agent)]
    error, took_s = kill_and_wait(run, victim)
    assert error.code == ErrorCode.COORDINATOR_LOST
    assert took_s < BOUND_S
    wait_gone(children)
    assert all(agent.is_running() for agent in agents)
