"""Several mini-batches to a step: joined, announced and sent by the feeder."""

from __future__ import annotations

import threading

from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.executor.routes import input_link
from pipesvc.worker.feeder.stream import END_MARKER
from tests.unit.feeder.test_feeder import STREAMED, failure_of, make_assignment, pair, running, stream


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
        bench.issue(1)
        bench.commit(1)
        bench.until(lambda: bench.announced() == [1, 2])
        threading.Event().wait(0.05)
        assert bench.announced() == [1, 2]


def test_a14_capacity_counts_batches_also_where_they_are_joined() -> None:
    with running(joining(make_assignment(arguments='{"count": 80}', capacity=7))) as bench:
        bench.until(lambda: bench.announced() == [1, 2])
        threading.Event().wait(0.05)
        assert bench.announced() == [1, 2]


def test_f16_the_time_of_a_source_is_that_of_one_batch_of_a_step() -> None:
    """Each batch takes 0.1 s and the step three times that; one that never comes is named after its own time."""
    with running(joining(make_assignment("slow", '{"count": 16, "pause_s": 0.025}', timeout_s=0.25))) as bench:
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert bench.announced() == [1, 2]
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
