"""The same streamed job submitted twice to the real service: the first stream goes on unharmed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import pipesvc
from pipesvc.client.watching import PipesvcWarning
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import jobs

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def local() -> Iterator[pipesvc.LocalCluster]:
    cluster = pipesvc.LocalCluster(num_workers=1, num_threads=1)
    with cluster:
        yield cluster


def _job(source: object) -> pipesvc.Job:
    return pipesvc.Job(
        model=jobs.mlp,
        loss=torch.nn.functional.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.StreamSource(source, batch_size=8),
    )


def _held(go_on: threading.Event) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ten batches; after the second one the test has its say."""
    for index, sample in enumerate(jobs.samples()):
        if index == 16:
            assert go_on.wait(LIMIT_S)
        yield sample


@pytest.mark.parametrize("saw_no_run", [False, True])
def test_a_second_client_does_not_harm_the_first_ones_stream(local: pipesvc.LocalCluster, saw_no_run: bool) -> None:
    run_id, go_on, untouched = f"twice-{saw_no_run}", threading.Event(), jobs.samples()
    run = local.client.submit(_job(_held(go_on)), run_id)
    steps = run.steps()
    assert [next(steps).index, next(steps).index] == [1, 2]
    with pipesvc.connect(local.address, token_file=local.token_file) as other:
        if saw_no_run:  # as if both had submitted at the same moment
            other._streams[run_id] = None
            second = other.submit(_job(jobs.samples()), run_id)
            assert second._stream is not None
            second._stream._carrier.join(LIMIT_S)
            with pytest.raises(PipesvcError, match="another client streams") as caught:
                second._stream.raise_failure()
            assert caught.value.code is ErrorCode.RUN_EXISTS
        else:
            with pytest.warns(PipesvcWarning, match="was there before"):
                second = other.submit(_job(untouched), run_id)
            assert len(list(untouched)) == 80
        assert run.state == "RUNNING"
        go_on.set()
        assert [step.index for step in steps] == list(range(3, 11))
        assert second.state == "COMPLETED"
