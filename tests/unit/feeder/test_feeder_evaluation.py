"""The evaluation data beside the training data: announced, sent, timed and refused, without moving a generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from tests.unit.feeder import sources
from tests.unit.feeder.test_feeder import CODE, Bench, make_assignment, running

EVALUATION = local_pb2.PASS_KIND_EVALUATION


def evaluated(
    source: str,
    arguments: str = "",
    *,
    training: str = "samples",
    weight: str = "",
    micro_batches: int = 3,
    **data: Any,
) -> local_pb2.Assignment:
    assignment = make_assignment(training, capacity=1)
    job = assignment.job
    spec: dict[str, Any] = {"yields": job_pb2.YIELDS_SAMPLE, "batch_size": 4, "capacity": 64, "double_buffer": True}
    spec |= {"has_labels": True, "timeout_s": 30.0} | data
    job.evaluation.data.CopyFrom(job_pb2.DataSpec(**spec))
    job.evaluation.data.source.CopyFrom(types_pb2.Call(target=f"{CODE}:{source}", arguments_json=arguments))
    job.evaluation.micro_batches = micro_batches
    if weight:
        job.weight.target = f"{CODE}:{weight}"
    return assignment


def begin(bench: Bench, after_step: int = 1) -> None:
    bench.port.tell(begin_evaluation=local_pb2.BeginEvaluation(after_step=after_step))


def reports(bench: Bench, kind: str) -> list[Any]:
    return [each for each in bench.port.reported(kind) if each.kind == EVALUATION]


def test_n18_each_evaluation_reads_its_data_from_the_beginning() -> None:
    with running(evaluated("samples", '{"count": 10}')) as bench:
        for number in (1, 2):
            begin(bench, number)
            bench.until(partial(_has_ended, bench, number))
            batches = reports(bench, "batch_announced")[-3:]
            assert [(each.step, list(each.rows), each.weight) for each in batches] == [
                (1, [2, 1, 1], 4.0),
                (2, [2, 1, 1], 4.0),
                (3, [1, 1], 2.0),
            ]
            assert reports(bench, "data_ended")[-1].num_steps == 3
        bench.port.tell(issue_step=local_pb2.IssueStep(step=2, kind=EVALUATION, after_step=2))
        sent: list[Any] = []
        bench.until(lambda: sent.extend(bench.sent()) or len(sent) == 6)  # type: ignore[func-returns-value]
        assert {(each.step, each.micro_batch) for each in sent} == {(2, 0), (2, 1), (2, 2)}


def _has_ended(bench: Bench, count: int) -> bool:
    return len(reports(bench, "data_ended")) == count


def test_n19_the_training_data_draws_what_it_would_draw_without_an_evaluation() -> None:
    def values(assignment: local_pb2.Assignment, between: Callable[[Bench], None]) -> list[float]:
        with running(assignment) as bench:
            found: list[Any] = []
            bench.until(lambda: bench.has_announced(1))
            between(bench)
            for step in (1, 2):
                bench.until(partial(bench.has_announced, step))
                bench.issue(step)
                bench.until(partial(_arrived, bench, found, 4 * step))
            return [float(value) for each in found for value in each.value().flatten()]

    def evaluation(bench: Bench) -> None:
        begin(bench)
        bench.until(partial(_has_ended, bench, 1))
        bench.port.reports[:] = [each for each in bench.port.reports if not each.batch_announced.kind]

    plain = values(make_assignment("drawn_rows", capacity=1), lambda bench: None)
    assert values(evaluated("drawn_rows", training="drawn_rows"), evaluation) == plain
    assert len(set(plain)) > 4


def _arrived(bench: Bench, found: list[Any], count: int) -> bool:
    found.extend(bench.sent())
    return len(found) == count


def test_a_batch_in_which_no_row_counts_is_announced_with_no_weight() -> None:
    with running(evaluated("samples", '{"count": 1}', weight="positive")) as bench:
        begin(bench)
        bench.until(partial(_has_ended, bench, 1))
        [batch] = reports(bench, "batch_announced")
        assert (list(batch.shares), batch.weight) == ([0.0], 0.0)


@pytest.mark.parametrize(
    ("source", "data", "code", "said"),
    [
        ("nothing", {}, ErrorCode.DATA_SOURCE_FAILED, "the evaluation data source gave no batch"),
        ("number", {}, ErrorCode.DATA_SOURCE_FAILED, "returned a int, which cannot be iterated"),
        ("blocks", {"timeout_s": 0.05}, ErrorCode.DATA_SOURCE_TIMED_OUT, "the evaluation data source timed out"),
    ],
)
def test_a_source_that_fails_is_told_with_the_evaluation(
    source: str, data: dict[str, Any], code: ErrorCode, said: str
) -> None:
    with running(evaluated(source, **data)) as bench:
        bench.until(lambda: bench.has_announced(1))
        begin(bench, 7)
        error = _error_of(bench)
    assert error.code == code
    assert said in error.details.message
    assert error.details.where.step == 7


def _error_of(bench: Bench) -> PipesvcError:
    for _ in range(2000):
        if bench.error is not None:
            return bench.error
        sources.RELEASED.wait(0.01)
    raise AssertionError("no error")
