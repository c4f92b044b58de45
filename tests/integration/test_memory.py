"""How much each process of the service ever holds, from building a model to its exported file, and step by step."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pipesvc
from benchmarks import memory
from tests.integration import jobs, plain
from tests.integration.peaks import Watch

MIB = 1 << 20
ROWS, WIDTH = 400_000, 64
TABLE_BYTES = ROWS * WIDTH * 4  # 98 MiB; the model has two
# Beside its stage: first uses of torch and gRPC, numbers drawn for other stages, chunks of a state on their way. Less
# than one layer, so a second table would show in any process.
OTHER_BYTES = 64 * MIB


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.second = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, jobs.NUM_CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.first(ids))
        result: Tensor = self.head(h + self.second(ids))
        return result


def far_rows() -> Iterator[tuple[int, int]]:
    for i in range(80):
        yield i * 6007 % ROWS, i % jobs.NUM_CLASSES


def trained(client: pipesvc.Client, model: Any, boundary: str, source: Any, file: Path) -> list[float]:
    """And exported; the losses."""
    run = client.submit(
        pipesvc.Job(
            model=model,
            loss=jobs.cross_entropy,
            optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.5),
            data=pipesvc.DataSource(source, batch_size=8),
            strategy=pipesvc.Strategy(boundaries=(boundary,), micro_batches=4),
            seed=7,
        )
    )
    run.wait()
    run.save_weights(file)
    return run.losses()


def test_a02_no_process_ever_holds_more_than_its_own_stage(tmp_path: Path) -> None:
    """Building, training with sparse gradients, saving and the export, in executors, feeder, inspector, agents,
    coordinator and client."""
    file = tmp_path / "weights.safetensors"
    with pipesvc.LocalCluster(num_workers=2, num_threads=1) as client:
        trained(client, jobs.named, "head", jobs.samples, file)  # so that all has been used once
        with Watch() as watch:
            losses = trained(client, TwoTables, "second", far_rows, file)
    holders = [growth for growth in watch.growths() if growth > TABLE_BYTES]
    assert len(holders) == 2, watch.growths()
    assert max(holders) < TABLE_BYTES + OTHER_BYTES
    assert max(growth for growth in watch.growths() if growth not in holders) < OTHER_BYTES
    truth = plain.train(
        TwoTables, far_rows, jobs.cross_entropy, functools.partial(torch.optim.SGD, lr=0.5), batch_size=8, seed=7
    )
    assert losses == truth.losses
    weights = load_file(file)
    assert weights.keys() == truth.weights.keys()
    assert all(torch.equal(weights[name], value) for name, value in truth.weights.items())


@pytest.mark.parametrize("same_host", [True, False], ids=["same_host", "grpc"])
def test_no_process_grows_from_step_to_step(same_host: bool) -> None:
    """A parcel of 256 KiB that any of them kept for each step would be 40 MiB. The benchmark has the figures."""
    cluster = pipesvc.LocalCluster(num_workers=2, num_threads=1)
    with cluster:
        found = memory.growth(cluster, same_host=same_host, first_step=40, last_step=200)
    assert sorted(found) == [
        "agent of stage 0", "agent of stage 1", "client", "coordinator", "executor of stage 0", "executor of stage 1",
        "feeder", "nursery of stage 0", "nursery of stage 1",
    ]  # fmt: skip
    assert max(growth for _, growth in found.values()) < 16 * MIB, found
