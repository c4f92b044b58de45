"""The feeder from its assignment to its end: announcing, sending, permits, failures, streams."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from pipesvc.core.plan import Plan, StagePlan
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.wire.links import FEEDER
from pipesvc.worker.executor.routes import input_link, label_link
from pipesvc.worker.feeder import main
from pipesvc.worker.feeder.stream import END_MARKER, STREAM_LINK
from pipesvc.worker.port import ParcelArrived
from tests.unit.executor.memory_network import MemoryPort, Network
from tests.unit.feeder import sources

CODE = "tests.unit.feeder.sources"
LIMIT_S = 20.0


class Bench:
    """A feeder on a thread, and the stages' ends of its links."""

    def __init__(self, *, window: int = 100) -> None:
        self.network = Network(window=window)
        self.port = MemoryPort(self.network)
        self.stages = MemoryPort(self.network)
        self.network.ports |= {FEEDER: self.port, 0: self.stages, 2: self.stages}
        self.error: PipesvcError | None = None

    def run(self, assignment: local_pb2.Assignment) -> None:
        try:
            main.run(self.port, assignment)
        except PipesvcError as error:
            self.error = error

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert self.error is None, self.error
            assert time.monotonic() < deadline
            threading.Event().wait(0.002)

    def announced(self) -> list[int]:
        return [each.step for each in self.port.reported("batch_announced")]

    def num_rows_read(self) -> int:
        """Of `samples`, when the reader's thread has come to wait for a permit and reads no further by itself."""
        self.until(self._is_held)
        return len(sources.READ)

    def _is_held(self) -> bool:
        reader = next(each for each in threading.enumerate() if each.name == "source-reader")
        frame = sys._current_frames().get(reader.ident or 0)
        caller = frame.f_back if frame is not None else None
        return caller is not None and caller.f_code is threading.Semaphore.acquire.__code__

    def has_announced(self, num_batches: int) -> bool:
        return len(self.announced()) == num_batches

    def issue(self, step: int) -> None:
        self.port.tell(issue_step=local_pb2.IssueStep(step=step))

    def commit(self, step: int) -> None:
        self.port.tell(step_committed=local_pb2.StepCommitted(step=step))

    def sent(self) -> list[ParcelArrived]:
        return self.network.arrivals(self.stages)


def make_assignment(source: str = "samples", arguments: str = "", **data: Any) -> local_pb2.Assignment:
    has_stream = data.get("is_streamed", False)
    spec: dict[str, Any] = {"yields": job_pb2.YIELDS_SAMPLE, "batch_size": 4, "capacity": 64, "double_buffer": True}
    spec |= {"has_labels": True, "timeout_s": 30.0} | data
    job = job_pb2.JobSpec(data=job_pb2.DataSpec(**spec), epochs=1, seed=5)
    job.strategy.micro_batches = 2
    job.loss.target = "unused:unused"
    if not has_stream:
        job.data.source.CopyFrom(types_pb2.Call(target=f"{CODE}:{source}", arguments_json=arguments))
    stages = tuple(
        StagePlan(
            index=index,
            label=f"stage:{index}",
            worker="a",
            device="cpu",
            first_layer=index,
            end_layer=index + 1,
            layer_names=(str(index),),
        )
        for index in range(3)
    )
    plan = Plan(stages=stages, schedule="1F1B", micro_batches=2, feeder_worker="a", threads={})
    return local_pb2.Assignment(run_id="run-1", job=job, plan_json=plan.to_json(), worker="a", host="host-1")


@contextmanager
def running(assignment: local_pb2.Assignment, bench: Bench | None = None) -> Iterator[Bench]:
    bench = bench or Bench()
    num_threads = torch.get_num_threads()
    sources.READ.clear()
    thread = threading.Thread(target=bench.run, args=(assignment,))
    thread.start()
    try:
        yield bench
    finally:
        bench.port.tell(stop=local_pb2.Stop(reason="test over"))
        sources.RELEASED.set()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        for each in threading.enumerate():
            if each.name == "source-reader":
                each.join(LIMIT_S)
                assert not each.is_alive()
        bench.network.close()
        sources.RELEASED.clear()
        torch.set_num_threads(num_threads)


def test_batches_are_announced_ahead_and_sent_when_issued() -> None:
    with running(make_assignment()) as bench:
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert bench.port.reported("data_ended")[0].num_steps == 3
        first, _, last = bench.port.reported("batch_announced")
        assert (first.step, first.epoch, list(first.shares), list(first.rows)) == (1, 0, [0.5, 0.5], [2, 2])
        assert (last.step, list(last.rows)) == (3, [1, 1])
        assert bench.sent() == []
        bench.issue(1)
        bench.until(lambda: len(bench.port.reported("trace")) == 1)
        sent = bench.sent()
        assert [(each.link, each.step, each.micro_batch) for each in sent] == [
            (input_link(0), 1, 0),
            (input_link(0), 1, 1),
            (label_link(3), 1, 0),
            (label_link(3), 1, 1),
        ]
        assert sent[1].value()[:, 0].tolist() == [2.0, 3.0]
        assert sent[3].value().tolist() == [2, 0]
        events = bench.port.reported("trace")[0].events
        assert [(each.action, each.step) for each in events] == [("read", 1), ("send", 1)]
        assert events[0].end_unix_ns >= events[0].start_unix_ns > 0


def test_a14_no_more_than_capacity_is_read_ahead() -> None:
    with running(make_assignment(arguments='{"count": 40}', capacity=3)) as bench:
        bench.until(lambda: bench.announced() == [1, 2, 3])
        assert bench.num_rows_read() == 12
        bench.issue(1)
        bench.until(lambda: bench.announced() == [1, 2, 3, 4])
        assert bench.num_rows_read() == 16


def test_a14_without_double_buffer_a_batch_is_read_after_the_commit() -> None:
    with running(make_assignment(arguments='{"count": 8}', double_buffer=False)) as bench:
        bench.until(lambda: bench.announced() == [1])
        bench.issue(1)
        bench.until(lambda: len(bench.port.reported("trace")) == 1)
        assert bench.num_rows_read() == 4
        bench.commit(1)
        bench.until(lambda: bench.announced() == [1, 2])
        bench.issue(2)
        bench.commit(2)
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)


def test_a14_short_last_whole_batch_without_double_buffer() -> None:
    data = {"yields": job_pb2.YIELDS_BATCH, "batch_size": 0, "double_buffer": False}
    with running(make_assignment("whole_batches", '{"sizes": [4, 1]}', **data)) as bench:
        for step in (1, 2):
            bench.until(partial(bench.has_announced, step))
            bench.issue(step)
            bench.commit(step)
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert list(bench.port.reported("batch_announced")[1].rows) == [1]


def failure_of(assignment: local_pb2.Assignment) -> PipesvcError:
    with running(assignment) as bench:
        deadline = time.monotonic() + LIMIT_S
        while bench.error is None:
            assert time.monotonic() < deadline
            threading.Event().wait(0.002)
        return bench.error


def test_f16_source_that_blocks_is_named_at_the_set_time() -> None:
    start_s = time.monotonic()
    error = failure_of(make_assignment("blocks", batch_size=2, timeout_s=0.2))
    assert time.monotonic() - start_s >= 0.2
    assert error.code is ErrorCode.DATA_SOURCE_TIMED_OUT
    assert "data source timed out: no batch came within 0.2 s" in error.details.message
    assert "RELEASED.wait()" in error.details.traceback
    assert (error.details.where.step, error.details.where.worker) == (2, "a")


def test_f15_waiting_for_permits_is_no_time_of_the_source() -> None:
    with running(make_assignment(capacity=1, timeout_s=0.1)) as bench:
        bench.until(lambda: bench.announced() == [1])
        threading.Event().wait(0.3)
        assert bench.error is None
        bench.issue(1)
        bench.until(lambda: bench.announced() == [1, 2])


def test_a16_exception_in_the_source() -> None:
    details = failure_of(make_assignment("fails_at", '{"index": 5}')).details
    assert (details.code, details.exception_type) == (ErrorCode.DATA_SOURCE_FAILED, "ValueError")
    assert 'raise ValueError("boom in the source")' in details.traceback
    assert (details.where.run_id, details.where.host) == ("run-1", "host-1")


def test_step_that_was_not_announced_is_refused() -> None:
    assignment = make_assignment()
    with running(assignment) as bench:
        bench.until(lambda: len(bench.announced()) == 3)
        bench.issue(9)
        deadline = time.monotonic() + LIMIT_S
        while bench.error is None and time.monotonic() < deadline:
            threading.Event().wait(0.002)
    assert bench.error is not None
    assert bench.error.code is ErrorCode.INTERNAL


def test_progress_names_what_is_awaited() -> None:
    with running(make_assignment("blocks", batch_size=2)) as bench:
        bench.until(lambda: bench.announced() == [1])
        bench.until(lambda: bench.port.reported("progress")[-1].awaiting.startswith("step 1 to be issued"))
        bench.issue(1)
        bench.until(lambda: bench.port.reported("progress")[-1].awaiting == "batch of step 2 from the data source")


STREAMED: dict[str, Any] = {"is_streamed": True, "yields": job_pb2.YIELDS_BATCH, "batch_size": 0}


def stream(bench: Bench, number: int, value: Any) -> None:
    bench.port.send_parcel(STREAM_LINK, number, 0, value)


def pair(num_rows: int) -> Any:
    return torch.ones(num_rows, 2), torch.arange(num_rows)


def test_streamed_batches_and_their_end() -> None:
    with running(make_assignment(**STREAMED)) as bench:
        stream(bench, 1, pair(4))
        stream(bench, 2, pair(1))
        bench.until(lambda: bench.announced() == [1])
        stream(bench, 3, END_MARKER)
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert bench.announced() == [1, 2]
        bench.issue(1)
        bench.until(lambda: len(bench.port.reported("trace")) == 1)
        assert [each.micro_batch for each in bench.sent()] == [0, 1, 0, 1]


def test_client_is_held_back_by_capacity_and_window() -> None:
    with running(make_assignment(capacity=3, **STREAMED), Bench(window=2)) as bench:
        for number in range(1, 9):
            stream(bench, number, pair(4))
        bench.until(lambda: bench.announced() == [1, 2, 3])
        threading.Event().wait(0.05)
        assert bench.announced() == [1, 2, 3]
        assert bench.port.consumed_counts[STREAM_LINK] == 3
        bench.issue(1)
        bench.until(lambda: bench.announced() == [1, 2, 3, 4])
        assert bench.port.consumed_counts[STREAM_LINK] == 4


def test_streamed_short_batch_without_double_buffer() -> None:
    with running(make_assignment(double_buffer=False, **STREAMED)) as bench:
        stream(bench, 1, pair(1))
        stream(bench, 2, END_MARKER)
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert bench.announced() == [1]


def test_stream_in_which_nothing_comes_times_out() -> None:
    assert failure_of(make_assignment(timeout_s=0.1, **STREAMED)).code is ErrorCode.DATA_SOURCE_TIMED_OUT


def test_stream_ends_at_max_steps() -> None:
    assignment = make_assignment(**STREAMED)
    assignment.job.max_steps = 2
    with running(assignment) as bench:
        for number in range(1, 5):
            stream(bench, number, pair(4))
        bench.until(lambda: len(bench.port.reported("data_ended")) == 1)
        assert bench.announced() == [1, 2]
