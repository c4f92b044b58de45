"""Several mini-batches to a step: joined, announced and sent by the feeder."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pipesvc.errors import ErrorCode, Where
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.executor.routes import input_link
from pipesvc.worker.feeder import reader
from pipesvc.worker.feeder.source import Reading, read
from pipesvc.worker.feeder.stream import END_MARKER
from tests.unit.feeder import sources
from tests.unit.feeder.test_feeder import LIMIT_S, STREAMED, failure_of, make_assignment, pair, running, stream


def joining(assignment: local_pb2.Assignment, *, epochs: int = 1) -> local_pb2.Assignment:
    assignment.job.accumulate, assignment.job.epochs = 3, epochs
    return assignment


def test_mini_batches_are_joined_to_steps_that_end_with_the_epoch() -> None:
    """18 rows in batches of 4: three full ones, then one and a short one; each cut into 2 micro-batches."""
    with running(joining(make_assignment(arguments='{"count": 18}'), epochs=2)) as bench:
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert bench.port.reported("data_ended")[0].num_steps == 4
        announced = bench.port.reported("batch_announced")
        assert [each.epoch for each in announced] == [0, 0, 1, 1]
        assert [list(each.rows) for each in announced] == [[2] * 6, [2, 2, 1, 1]] * 2
        assert [list(each.shares) for each in announced[:2]] == [[2 / 12] * 6, [2 / 6, 2 / 6, 1 / 6, 1 / 6]]
        bench.issue(1)
        bench.until(lambda: len(bench.port.reported("trace")) == 1)
        sent = [each for each in bench.sent() if each.link == input_link(0)]
        assert [each.micro_batch for each in sent] == [0, 1, 2, 3, 4, 5]
        assert sent[5].value()[:, 0].tolist() == [10.0, 11.0]


def test_a14_without_double_buffer_one_step_of_joined_batches_is_read() -> None:
    with running(joining(make_assignment(arguments='{"count": 40}', double_buffer=False))) as bench:
        bench.until(lambda: bench.announced() == [1])
        assert bench.num_rows_read() == 12
        bench.issue(1)
        bench.commit(1)
        bench.until(lambda: bench.announced() == [1, 2])
        assert bench.num_rows_read() == 24


def test_a14_capacity_counts_batches_also_where_they_are_joined() -> None:
    with running(joining(make_assignment(arguments='{"count": 80}', capacity=7))) as bench:
        bench.until(lambda: bench.announced() == [1, 2])
        assert bench.num_rows_read() == 24


def test_f16_the_time_of_a_source_begins_anew_with_each_batch_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=itertools.count().__next__, time_ns=time.time_ns)
    monkeypatch.setattr(reader, "time", clock)
    since_s: list[float | None] = []

    def source() -> Iterator[Any]:
        for sample in sources.samples(12):
            since_s.append(supply.reading_since_s())
            yield sample

    assignment = joining(make_assignment(), epochs=1)
    reading = Reading(
        data=assignment.job.data, num_micro_batches=2, num_joined=3, num_epochs=1, max_steps=0, seed=5, where=Where()
    )
    came = threading.Event()
    supply = reader.Reader(read(source, reading), 1, came.set, Where())
    supply.start()
    assert came.wait(LIMIT_S)
    supply.close(LIMIT_S)
    assert since_s == [0] * 4 + [1] * 4 + [2] * 4


def test_f16_a_batch_of_a_step_that_never_comes_is_named_after_its_own_time() -> None:
    error = failure_of(joining(make_assignment("blocks", batch_size=2, timeout_s=0.2)))
    assert error.code is ErrorCode.DATA_SOURCE_TIMED_OUT
    assert error.details.where.step == 1


def test_streamed_batches_are_joined() -> None:
    with running(joining(make_assignment(**STREAMED))) as bench:
        for number in range(1, 5):
            stream(bench, number, pair(4))
        bench.until(lambda: bench.announced() == [1])
        stream(bench, 5, END_MARKER)
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert [len(each.rows) for each in bench.port.reported("batch_announced")] == [6, 2]
