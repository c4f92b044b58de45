"""Tests of GPU stages run where a GPU is: `make gpu`. Elsewhere they are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import pipesvc


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.device_count() > 0:
        return
    for item in items:
        item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device here"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[pipesvc.Client]:
    """A CPU worker, and a worker for each of at most two GPUs; both on the only GPU where there is one."""
    num_gpus = torch.cuda.device_count()
    for index in range(num_gpus):  # the driver opens a socket when it is first used, and keeps it
        torch.cuda.mem_get_info(index)
    devices = ["cpu", "cuda:0", f"cuda:{min(1, num_gpus - 1)}"]
    with pipesvc.LocalCluster(num_workers=3, devices=devices, num_threads=1) as client:
        yield client
