"""A representative part of the zoo through real processes: the bits of the plain loop. The rest is in tests/zoo."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pipesvc
from tests.integration import plain, zoo_jobs
from tests.integration.comparisons import assert_equal
from tests.zoo import hub_images, hub_text, own_others, own_sequences


@dataclass(frozen=True, kw_only=True)
class Case:
    model: Callable[[], Any]
    source: Callable[[], Any]
    loss: Callable[..., Any]
    num_stages: int = 2
    schedule: str = "1F1B"


CASES = {
    "llama": Case(model=hub_text.llama, source=zoo_jobs.texts, loss=zoo_jobs.next_word, num_stages=3),
    "timm convnext": Case(model=hub_images.plain_convnext, source=zoo_jobs.large_pictures, loss=zoo_jobs.class_of),
    "channels last": Case(
        model=own_others.GroupNormed, source=zoo_jobs.pictures, loss=zoo_jobs.class_of, num_stages=4, schedule="ZBV"
    ),
    "mixture": Case(
        model=own_sequences.Mixture, source=zoo_jobs.words, loss=zoo_jobs.next_word_and_balance, num_stages=3
    ),
    "latents": Case(
        model=own_sequences.Latents,
        source=zoo_jobs.words,
        loss=zoo_jobs.first_word,
        num_stages=4,
        schedule="Interleaved1F1B",
    ),
    "views": Case(model=own_others.Views, source=zoo_jobs.odd_rows, loss=zoo_jobs.next_word, schedule="GPipe"),
}


@pytest.mark.parametrize("name", CASES)
def test_a09_models_of_the_zoo_equal_the_plain_loop(cluster: pipesvc.Client, name: str) -> None:
    case = CASES[name]
    run = cluster.submit(
        pipesvc.Job(
            model=case.model,
            loss=case.loss,
            optimizer=pipesvc.Optimizer(torch.optim.AdamW, lr=0.01),
            data=pipesvc.DataSource(case.source, batch_size=8),
            strategy=pipesvc.Strategy(micro_batches=3, num_stages=case.num_stages, schedule=case.schedule),
            clip_norm=0.5,
            seed=7,
        )
    )
    expected = plain.train(
        case.model,
        case.source,
        case.loss,
        functools.partial(torch.optim.AdamW, lr=0.01),
        batch_size=8,
        micro_batches=3,
        clip_norm=0.5,
        seed=7,
        call=lambda model, inputs: model(**inputs),
    )
    assert_equal(run, expected)
    assert len(run.plan().stages) == case.num_stages
