"""Evaluations of a run of real processes: the numbers of a plain loop in eval() mode, and training's are the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import pipesvc
from pipesvc.core.split import micro_batch_rows
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import evaluation_jobs, jobs, plain
from tests.integration.evaluation_jobs import accuracy, make_evaluation, make_job
from tests.waiting import until


def plain_evaluation(
    model: nn.Module, rows: Iterable[plain.Sample], metrics: list[Callable[..., Any]], *, batch_size: int, parts: int
) -> list[float]:
    """Loss and metrics as most people write it: the mean of each batch times its rows, added up."""
    model.eval()
    totals, num_rows = [0.0] * (1 + len(metrics)), 0
    for batch in plain.batches(rows, batch_size):
        inputs = torch.stack([row for row, _ in batch])
        labels = torch.stack([torch.as_tensor(label) for _, label in batch])
        values, start = [0.0] * len(totals), 0
        for count in micro_batch_rows(len(batch), parts):
            with torch.no_grad():
                outputs = model(inputs[start : start + count])
                here = labels[start : start + count]
                found = [float(each(outputs, here)) for each in (jobs.cross_entropy, *metrics)]
            values = [value + count / len(batch) * each for value, each in zip(values, found, strict=True)]
            start += count
        totals = [total + value * len(batch) for total, value in zip(totals, values, strict=True)]
        num_rows += len(batch)
    return [total / num_rows for total in totals]


def test_n18_an_evaluation_after_each_epoch_is_that_of_a_plain_loop(cluster: pipesvc.Client) -> None:
    evaluation = make_evaluation(micro_batches=3, metrics={"accuracy": accuracy, "top": evaluation_jobs.largest})
    run = cluster.submit(make_job(evaluation, epochs=2))
    events = [event for event in run.events() if not hasattr(event, "run_id")]
    kinds = ["evaluation" if isinstance(event, pipesvc.Evaluated) else event.index for event in events]
    assert kinds == [1, 2, 3, 4, 5, "evaluation", 6, 7, 8, 9, 10, "evaluation"]
    found = run.evaluations()
    assert [(each.step, each.epoch, each.num_rows, list(each.metrics)) for each in found] == [
        (5, 0, 22, ["accuracy", "top"]),
        (10, 1, 22, ["accuracy", "top"]),
    ]
    for each in found:
        trained = plain.train(
            functools.partial(jobs.mlp, 2),
            functools.partial(jobs.samples, 40),
            jobs.cross_entropy,
            functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            batch_size=8,
            micro_batches=4,
            epochs=each.epoch + 1,
        )
        model = jobs.mlp(2)
        model.load_state_dict(trained.weights)
        metrics = [accuracy, evaluation_jobs.largest]
        expected = plain_evaluation(model, jobs.samples(22, 5), metrics, batch_size=8, parts=3)
        assert [each.loss, *each.metrics.values()] == expected
    assert cluster.attach(run.run_id).evaluations() == found


def test_n19_training_has_the_same_numbers_with_and_without_evaluations(cluster: pipesvc.Client) -> None:
    """Dropout and BatchNorm, and sources that draw as they go."""
    changes: dict[str, Any] = {
        "model": jobs.with_noise,
        "data": pipesvc.DataSource(pipesvc.Call(evaluation_jobs.shuffled, num_rows=40), batch_size=8, capacity=1),
        "epochs": 2,
    }
    without = cluster.submit(make_job(None, **changes))
    without.wait()
    rows = pipesvc.Call(evaluation_jobs.shuffled, num_rows=16)
    run = cluster.submit(make_job(make_evaluation(rows, every_steps=3, micro_batches=2), **changes))
    run.wait()
    assert [each.step for each in run.evaluations()] == [3, 6, 9, 10]
    assert run.losses() == without.losses()
    state, plain_state = run.state_dict(), without.state_dict()
    assert list(state) == list(plain_state)
    assert all(torch.equal(state[name], plain_state[name]) for name in state)


@pytest.mark.parametrize(
    ("evaluation", "code", "said"),
    [
        (
            make_evaluation(metrics={"share": evaluation_jobs.raises}),
            ErrorCode.STAGE_FAILED,
            "the metric 'share'",
        ),
        (make_evaluation(metrics={"outputs": evaluation_jobs.no_number}), ErrorCode.INVALID_JOB, "not a number"),
        (make_evaluation(jobs.wide_samples), ErrorCode.STAGE_FAILED, "forward of layer '0' (Linear)"),
        (make_evaluation(evaluation_jobs.empty), ErrorCode.DATA_SOURCE_FAILED, "gave no batch"),
    ],
)
def test_a13_what_fails_in_the_first_micro_batch_of_an_evaluation_is_refused_at_submit(
    cluster: pipesvc.Client, evaluation: pipesvc.Evaluation, code: ErrorCode, said: str
) -> None:
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(evaluation))
    assert caught.value.code == code
    assert said in caught.value.details.message
    assert caught.value.details.where.worker


def test_what_fails_later_in_an_evaluation_is_told_with_its_place(cluster: pipesvc.Client) -> None:
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(make_evaluation(evaluation_jobs.torn))).wait()
    assert caught.value.code == ErrorCode.DATA_SOURCE_FAILED
    assert "'row 9 is torn', in the evaluation after step 5" in caught.value.details.message
    assert caught.value.details.where.step == 5
    assert caught.value.details.where.worker


def test_a_metric_that_fails_later_leaves_the_run_its_weights(cluster: pipesvc.Client) -> None:
    """It fails in the third batch of each evaluation alone, so not in what is tried at submit."""
    metrics = {"accuracy": accuracy, "small": evaluation_jobs.only_of_full_batches}
    run = cluster.submit(make_job(make_evaluation(metrics=metrics, micro_batches=1), epochs=2))
    with pytest.warns(
        pipesvc.PipesvcWarning, match="the metric 'small' on .*: ValueError: 6 rows, in micro-batch 0 of"
    ):
        run.wait()
    assert run.state_dict()
    assert [math.isnan(each.metrics["small"]) for each in run.evaluations()] == [True, True]
    assert all(math.isfinite(each.metrics["accuracy"]) for each in run.evaluations())


def test_rows_that_weigh_nothing_do_not_count(cluster: pipesvc.Client) -> None:
    evaluation = pipesvc.Evaluation(data=pipesvc.DataSource(evaluation_jobs.masked, batch_size=4), micro_batches=4)
    data = pipesvc.DataSource(pipesvc.Call(jobs.masked_samples, num_masked=3), batch_size=18)
    run = cluster.submit(make_job(evaluation, data=data, loss=jobs.masked_loss, weight=jobs.is_unmasked, max_steps=1))
    run.wait()
    model = jobs.mlp(2)
    model.load_state_dict(run.state_dict())
    rows = [row for row in evaluation_jobs.masked() if row[1] >= 0]
    [expected] = plain_evaluation(model, rows, [], batch_size=3, parts=3)
    [found] = run.evaluations()
    assert found.loss == expected
    assert found.num_rows == 8


def test_a_run_is_cancelled_while_it_is_evaluated(cluster: pipesvc.Client) -> None:
    evaluation = pipesvc.Evaluation(data=pipesvc.DataSource(evaluation_jobs.blocking, batch_size=2), every_steps=2)
    run = cluster.submit(make_job(evaluation))
    steps = run.steps()
    assert [next(steps).index, next(steps).index] == [1, 2]
    awaited = "batch 3 of the evaluation after step 2"
    until(lambda: [each.what for each in run.info().awaited] == [awaited], awaited)
    assert run.cancel() == "CANCELLED"
    assert run.state_dict()
    assert run.evaluations() == []
