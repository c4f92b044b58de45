"""A stream of which one batch is read ahead: nothing is lost, and what is missing is said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipesvc.client import first_batch
from pipesvc.client.first_batch import Batches, Unstreamed
from pipesvc.client.job import Job, Optimizer, Strategy, StreamSource
from pipesvc.rpc.v1 import job_pb2
from pipesvc.wire import samples


def rows(num_rows: int) -> Iterator[tuple[Any, Any]]:
    for index in range(num_rows):
        yield {"ids": torch.tensor([index])}, torch.zeros(())


def source_of(items: Any, **options: Any) -> StreamSource:
    return StreamSource(items, **({"batch_size": 4} | options))


def job(source: StreamSource, **strategy: Any) -> Job:
    return Job(
        model=torch.nn.Identity,
        loss=torch.nn.functional.mse_loss,
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=source,
        strategy=Strategy(**{"micro_batches": 2, **strategy}),
    )


def test_the_sample_is_the_first_micro_batch_and_all_batches_follow() -> None:
    found = Batches(source_of(rows(10)))
    assert samples.decode(found.sample(2))["ids"].tolist() == [[0], [1]]
    assert samples.decode(found.sample(4))["ids"].tolist() == [[0]], "asked again, it is the same batch"
    assert [inputs["ids"].flatten().tolist() for inputs, _ in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_without_a_sample_nothing_is_read_before_its_time() -> None:
    items = rows(10)
    found = iter(Batches(source_of(items)))
    assert next(items)[0]["ids"].tolist() == [0]
    assert next(found)[0]["ids"].flatten().tolist() == [1, 2, 3, 4]


def broken() -> Iterator[Any]:
    raise OSError("no disk")
    yield


def test_what_the_source_raises_comes_out_where_it_is_read() -> None:
    found = Batches(source_of(broken()))
    assert found.sample(1).absent == "the source raised OSError: no disk"
    with pytest.raises(OSError, match="no disk"):
        list(found)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (source_of([]), "the source gave no batch"),
        (
            source_of([{"ids": torch.zeros(samples.MAX_SAMPLE_BYTES + 1, 1).bool()}], yields="batch", labels=False),
            "bytes",
        ),
        (source_of([torch.zeros(())], yields="batch", labels=False), "no tensor with rows"),
    ],
)
def test_what_is_no_sample_is_said_and_still_streamed(source: StreamSource, said: str) -> None:
    found = Batches(source)
    assert said in found.sample(1).absent
    assert len(list(found)) == len(source.source)


def test_a_source_that_waits_for_something_later_holds_up_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_batch, "WAIT_S", 0.05)
    later = threading.Event()

    def waiting() -> Iterator[Any]:
        later.wait(20)
        yield from rows(4)

    found = Batches(source_of(waiting()))
    assert found.sample(1).absent == "the source gave no batch within 0.05 s"
    later.set()
    assert len(list(found)) == 1


def test_a_job_that_comes_again_goes_on_with_what_was_read() -> None:
    source, unstreamed = source_of(rows(8)), Unstreamed()
    for _ in range(2):
        data = job_pb2.DataSpec()
        unstreamed.look_ahead(job(source), data)
        assert samples.decode(data.first)["ids"].tolist() == [[0], [1]]
    assert len(list(unstreamed.take(source))) == 2


@pytest.mark.parametrize("strategy", [{"pipeline": False}, {"num_stages": 1}])
def test_one_stage_needs_no_sample(strategy: dict[str, Any]) -> None:
    items, data = rows(8), job_pb2.DataSpec()
    Unstreamed().look_ahead(job(source_of(items), **strategy), data)
    assert not data.HasField("first")
    assert next(items)[0]["ids"].tolist() == [0]
