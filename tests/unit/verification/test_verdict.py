"""When verify promises equal bits, and what it says where it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipesvc
from pipesvc.core.ties import Tie
from pipesvc.verification.verify import not_promised
from tests.integration import jobs

TIES = [
    Tie(name="wte.weight", stages=(0, 2), num_bytes=4, is_trained=True),
    Tie(name="mask", stages=(0, 1), num_bytes=4, is_trained=False),
]


def make_job(**options: Any) -> pipesvc.Job:
    return pipesvc.Job(
        model=jobs.tied,
        loss=nn.functional.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(jobs.samples, batch_size=8),
        **options,
    )


@pytest.mark.parametrize(
    ("options", "ties", "theirs", "said"),
    [
        ({}, TIES, ["cpu"], ""),
        ({}, [], ["other", "cpu"], "here cpu; there cpu; other"),
        ({"strategy": pipesvc.Strategy(micro_batches=2, compile=True)}, [], ["cpu"], "compiled modules add in another"),
        ({"autocast": "bfloat16"}, TIES[1:], ["cpu"], ""),
        ({"autocast": "bfloat16"}, TIES, ["cpu"], "'wte.weight' is cast by each of the stages 0, 2, and once in one"),
    ],
)
def test_equal_bits_are_promised_but_for_what_is_told(
    options: dict[str, Any], ties: list[Tie], theirs: list[str], said: str
) -> None:
    found = not_promised(make_job(**options), ties, theirs, "cpu")
    assert found.startswith(said)
    assert bool(found) == bool(said)
