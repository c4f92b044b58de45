"""A stage that is slower than the one before it: nobody's memory grows with what could be made meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import pipesvc
from tests.integration import jobs
from tests.integration.peaks import Watch

MIB = 1 << 20
PARCEL_BYTES = 4 * MIB
MICRO_BATCHES, NUM_BATCHES = 64, 3
# What a sender may be ahead, one parcel, and what a child's first uses of torch and gRPC take, up to 140 MiB. The two
# batches that are issued have 512 MiB on one link, beside those first uses.
BOUND_BYTES = (64 + 4 + 232) * MIB


class Widen(nn.Module):
    """Rows of few numbers become rows of 4 MiB at once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x.mean(1, keepdim=True) * self.weight).expand(-1, PARCEL_BYTES // 4).contiguous()


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, h: Tensor) -> Tensor:
        time.sleep(0.02)
        return h[:, :1] * self.weight


def widening() -> nn.Sequential:
    return nn.Sequential(Widen(), Slow())


@pytest.fixture(scope="module")
def pair() -> Iterator[pipesvc.Client]:
    with pipesvc.LocalCluster(num_workers=2, num_threads=1) as client:
        client.submit(job(same_host=True, num_batches=1)).wait()  # so that all has been used once
        yield client


def job(same_host: bool, num_batches: int = NUM_BATCHES) -> pipesvc.Job:
    source = pipesvc.Call(jobs.inputs_alone, num_rows=num_batches * MICRO_BATCHES)
    return pipesvc.Job(
        model=widening,
        loss=jobs.mean_square,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.0),
        data=pipesvc.DataSource(source, batch_size=MICRO_BATCHES, labels=False),
        strategy=pipesvc.Strategy(micro_batches=MICRO_BATCHES, boundaries=(1,), same_host=same_host),
    )


@pytest.mark.parametrize("same_host", [True, False], ids=["same host", "gRPC"])
def test_a_slow_receiver_grows_nobody_in_a_prediction(pair: pipesvc.Client, same_host: bool) -> None:
    asked = job(same_host)
    with Watch() as watch:
        found = [outputs.shape for outputs in pair.predict(asked, asked.data)]
    assert found == [(MICRO_BATCHES, 1)] * NUM_BATCHES
    assert max(watch.growths()) < BOUND_BYTES, watch.growths()


@pytest.mark.parametrize("same_host", [True, False], ids=["same host", "gRPC"])
def test_a_slow_receiver_grows_nobody_in_training(pair: pipesvc.Client, same_host: bool) -> None:
    with Watch() as watch:
        run = pair.submit(job(same_host))
        run.wait()
    assert len(run.losses()) == NUM_BATCHES
    way = {link["link"]: link["way"] for link in run.links()}["0>1/activation"]
    assert way == ("same host" if same_host else "gRPC")
    assert max(watch.growths()) < BOUND_BYTES, watch.growths()
