"""What is refused at submit of a model that is no list of layers, through real processes, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import forwards


def make_job(model: Callable[[], Any] = forwards.Plain, **changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": model,
        "loss": cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        "data": pipesvc.DataSource(forwards.words, batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=2),
    }
    return pipesvc.Job(**(options | changes))


def line_in(function: Callable[..., Any], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


@pytest.mark.parametrize(
    ("job", "code", "message", "advice"),
    [
        (
            make_job(forwards.Checkpointed, strategy=pipesvc.Strategy(boundaries=("blocks.1",), micro_batches=4)),
            ErrorCode.INVALID_PLAN,
            "units 'blocks.0' and 'blocks.1' cannot lie on stages 0 and 1: a checkpointed function calls both, "
            f"tests/integration/forwards.py:{line_in(forwards.Checkpointed.forward, 1)} (`h = checkpoint(",
            "Cut where that function begins",
        ),
        (
            make_job(forwards.Reading),
            ErrorCode.INVALID_JOB,
            f"at tests/integration/forwards.py:{line_in(forwards.Reading.forward, 2)} (`if h.sum() > 0:`) reads the",
            "pipeline=False",
        ),
        (
            make_job(strategy=pipesvc.Strategy(boundaries=("blocks",), micro_batches=4)),
            ErrorCode.INVALID_PLAN,
            "cut 'blocks' is a ModuleList, which is never called",
            "'blocks.0'",
        ),
        (
            make_job(strategy=pipesvc.Strategy(num_stages=2, micro_batches=4, recompute=("words", "blcks.*"))),
            ErrorCode.INVALID_JOB,
            "recompute has 'blcks.*', which is the name of no module",
            "'blocks.0'",
        ),
        (
            make_job(
                forwards.Towering,
                strategy=pipesvc.Strategy(boundaries=("tower.blocks.2",), micro_batches=4, recompute=("tower",)),
            ),
            ErrorCode.INVALID_PLAN,
            "units 'tower.blocks.0' and 'tower.blocks.3' cannot lie on stages 0 and 1: both are inside 'tower', which "
            "recompute names",
            "'tower.*'",
        ),
        (
            make_job(data=pipesvc.StreamSource([], batch_size=8)),
            ErrorCode.INVALID_JOB,
            "there is none of the stream: the source gave no batch",
            "use a DataSource",
        ),
    ],
    ids=["checkpointed", "reading", "never called", "no such module", "recomputed as one", "streamed"],
)
def test_what_cannot_be_cut_is_refused_at_submit(
    cluster: pipesvc.Client, job: pipesvc.Job, code: ErrorCode, message: str, advice: str
) -> None:
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(job)
    assert caught.value.code is code
    assert message in caught.value.details.message
    assert advice in caught.value.details.advice


def test_a_cut_inside_a_unit_is_no_cut_of_a_plan(cluster: pipesvc.Client) -> None:
    with pytest.raises(PipesvcError, match=r"it lies inside layer 'blocks\.1', which is one piece") as caught:
        cluster.plan(make_job(strategy=pipesvc.Strategy(boundaries=("blocks.1.inner",), micro_batches=4)))
    assert caught.value.code is ErrorCode.INVALID_PLAN
