"""A metric that fails in the middle of a run does not end it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.executor.test_evaluation import (
    WARNINGS,
    MeasuringSetup,
    noisy_layers,
    random_batches,
    train_with_evaluations,
)


@pytest.fixture(autouse=True)
def no_warnings_before() -> None:
    WARNINGS.clear()


def fails_late(outputs: Tensor, labels: Tensor) -> float:
    fails_late.num_calls += 1  # type: ignore[attr-defined]
    if fails_late.num_calls > 2:  # type: ignore[attr-defined]
        raise LookupError("a class without rows")
    return 0.5


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (lambda outputs, labels: outputs[99], "the metric 'spread' on float32 (4, 3), int64 (4,): IndexError"),
        (lambda outputs, labels: outputs, "the metric 'spread' gave float32 (4, 3), not a number"),
        (lambda outputs, labels: "good", "the metric 'spread' gave str, not a number"),
    ],
)
def test_a_metric_that_fails_is_nan_and_says_why_once_while_training_goes_on(
    metric: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tests.unit.executor.test_evaluation.spread", metric)
    setup = MeasuringSetup(make_layers=noisy_layers, cuts=(2,), loss=torch.nn.functional.cross_entropy)
    found = train_with_evaluations(setup, random_batches(2, 1), random_batches(2, 2), is_repeated=False)
    assert all(math.isfinite(loss) and math.isnan(value) for each in found for loss, value in each)
    [warning] = WARNINGS
    assert warning.startswith(said)
    assert "in micro-batch 0 of batch 1 of the evaluation after step 1: the metric is nan" in warning
    assert len([record for record in caplog.records if said in record.message]) == 1


def test_a_metric_that_fails_later_keeps_the_numbers_before(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_late.num_calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr("tests.unit.executor.test_evaluation.spread", fails_late)
    setup = MeasuringSetup(make_layers=noisy_layers, cuts=(2,), loss=torch.nn.functional.cross_entropy)
    found = train_with_evaluations(setup, random_batches(2, 1), random_batches(1, 2), is_repeated=False)
    assert found[0][0][1] == 0.5
    assert math.isnan(found[1][0][1])
    [warning] = WARNINGS
    assert "LookupError: a class without rows, in micro-batch 0 of batch 1 of the evaluation after step 2" in warning
