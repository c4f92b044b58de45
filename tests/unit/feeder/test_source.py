"""The user's source as batches: every kind of source, epochs, ends, seeds and failures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, types_pb2
from pipesvc.worker.feeder.batches import RawBatch
from pipesvc.worker.feeder.source import Reading, read
from tests.unit.feeder import sources

SAMPLE, SAMPLE_LIST, BATCH = job_pb2.YIELDS_SAMPLE, job_pb2.YIELDS_SAMPLE_LIST, job_pb2.YIELDS_BATCH


def batches(
    source: Callable[[], Any],
    yields: job_pb2.Yields = SAMPLE,
    *,
    batch_size: int = 0,
    num_micro_batches: int = 2,
    num_epochs: int = 1,
    max_steps: int = 0,
    has_labels: bool = True,
    drop_last: bool = False,
    seed: int = 5,
    start: types_pb2.Position | None = None,
) -> list[RawBatch]:
    data = job_pb2.DataSpec(yields=yields, batch_size=batch_size, has_labels=has_labels, drop_last=drop_last)
    reading = Reading(
        data=data,
        num_micro_batches=num_micro_batches,
        num_epochs=num_epochs,
        max_steps=max_steps,
        seed=seed,
        where=Where(worker="a"),
        start=start or types_pb2.Position(),
    )
    return [batch for step in read(source, reading) if step is not None for batch in step.batches]


def rows(read_batches: list[RawBatch]) -> list[tuple[int, int]]:
    return [(each.epoch, each.num_rows) for each in read_batches]


def test_a15_last_short_batch_counts_and_epochs_follow() -> None:
    found = batches(partial(sources.samples, 10), batch_size=4, num_epochs=2)
    assert rows(found) == [(0, 4), (0, 4), (0, 2), (1, 4), (1, 4), (1, 2)]
    assert found[1].inputs[:, 0].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert found[1].labels.tolist() == [1, 2, 0, 1]


def test_a15_hundred_samples_in_batches_of_two_are_fifty_steps() -> None:
    assert len(batches(partial(sources.samples, 100), batch_size=2)) == 50


def test_drop_last_and_max_steps() -> None:
    assert rows(batches(sources.samples, batch_size=4, drop_last=True)) == [(0, 4), (0, 4)]
    found = batches(sources.samples, batch_size=4, num_epochs=3, max_steps=4)
    assert rows(found) == [(0, 4), (0, 4), (0, 2), (1, 4)]


def test_n18_max_steps_alone_repeats_the_source() -> None:
    found = batches(sources.samples, batch_size=5, num_epochs=0, max_steps=5)
    assert [each.epoch for each in found] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("num_done", range(7))
def test_a_source_goes_on_where_a_checkpoint_stands(num_done: int) -> None:
    """Three steps in an epoch, of a source that draws; max_steps counts from the beginning."""
    options: dict[str, Any] = {"batch_size": 4, "num_epochs": 3}
    whole = batches(partial(sources.drawn_rows, 12), **options)
    start = types_pb2.Position(step=num_done, epoch=max(0, num_done - 1) // 3)
    start.steps_in_epoch = num_done - 3 * start.epoch
    found = batches(partial(sources.drawn_rows, 12), **options, start=start)
    assert len(found) == 9 - num_done
    assert all(torch.equal(one.inputs, other.inputs) for one, other in zip(found, whole[num_done:], strict=True))
    assert [each.epoch for each in found] == [each.epoch for each in whole[num_done:]]
    assert len(batches(partial(sources.drawn_rows, 12), **options, start=start, max_steps=7)) == 7 - num_done


def test_a_source_that_gives_less_than_the_checkpoint_has_seen_is_refused() -> None:
    start = types_pb2.Position(step=4, epoch=0, steps_in_epoch=4)
    with pytest.raises(PipesvcError, match="gave 3 steps in epoch 0, and the checkpoint stands after 4"):
        batches(partial(sources.samples, 12), batch_size=4, num_epochs=3, start=start)


def test_sample_lists_and_whole_batches() -> None:
    assert rows(batches(partial(sources.sample_lists, [3, 4, 2]), SAMPLE_LIST)) == [(0, 3), (0, 4), (0, 2)]
    assert rows(batches(partial(sources.whole_batches, [3, 4, 1]), BATCH)) == [(0, 3), (0, 4), (0, 1)]


def test_dataset_loader_and_dicts() -> None:
    squares = batches(sources.Squares, batch_size=4)
    assert [each.labels.tolist() for each in squares] == [[0, 1, 4, 9], [16, 25]]
    loaded = batches(sources.loader, BATCH)
    assert [each.labels.tolist() for each in loaded] == [[0, 1], [2, 3], [4]]
    dicts = batches(sources.inputs_only, batch_size=2, has_labels=False)
    assert [each.inputs["ids"].tolist() for each in dicts] == [[[0], [1]], [[2], [3]]]
    assert all(each.labels is None for each in dicts)


def test_epochs_are_seeded_by_job_and_epoch() -> None:
    def drawn(seed: int) -> list[list[float]]:
        found = batches(sources.drawn, batch_size=2, num_epochs=2, seed=seed)
        return [[*each.inputs.flatten().tolist(), *each.labels.tolist()] for each in found]

    first = drawn(5)
    torch.rand(3)
    assert drawn(5) == first
    assert first[0] != first[1]
    assert drawn(6)[0] != first[0]


@pytest.mark.parametrize(
    ("source", "yields", "code", "text"),
    [
        (partial(sources.fails_at, 1), SAMPLE, ErrorCode.DATA_SOURCE_FAILED, "epoch 0: ValueError: boom in the source"),
        (sources.nothing, SAMPLE, ErrorCode.DATA_SOURCE_FAILED, "no batch in epoch 0"),
        (sources.number, SAMPLE, ErrorCode.DATA_SOURCE_FAILED, "returned a int, which cannot be iterated"),
        (sources.samples, SAMPLE_LIST, ErrorCode.INVALID_JOB, ""),
        (partial(sources.sample_lists, [2, 0]), SAMPLE_LIST, ErrorCode.DATA_SOURCE_FAILED, "an empty list"),
        (partial(sources.whole_batches, [4, 1, 4]), BATCH, ErrorCode.INVALID_JOB, "1 rows, not the last of its epoch"),
    ],
)
def test_failures_are_named(source: Callable[[], Any], yields: job_pb2.Yields, code: ErrorCode, text: str) -> None:
    if source is sources.samples:
        code, text = ErrorCode.DATA_SOURCE_FAILED, "do not make a batch|where a pair"
    with pytest.raises(PipesvcError, match=text) as caught:
        batches(source, yields, batch_size=0 if yields != SAMPLE else 2)
    assert caught.value.code is code
    assert caught.value.details.where.worker == "a"


def test_a16_failure_has_the_users_traceback() -> None:
    with pytest.raises(PipesvcError) as caught:
        batches(partial(sources.fails_at, 1), batch_size=2)
    details = caught.value.details
    assert details.exception_type == "ValueError"
    assert 'raise ValueError("boom in the source")' in details.traceback
    assert "feeder/source.py" not in details.traceback


def test_p09_batch_smaller_than_the_micro_batches_is_refused() -> None:
    with pytest.raises(PipesvcError, match="a batch of 2 rows") as caught:
        batches(sources.samples, batch_size=2, num_micro_batches=4)
    assert caught.value.code is ErrorCode.INVALID_JOB
