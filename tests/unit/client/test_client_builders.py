"""How a model is built, as a message: with numbers keyed by name, and by one function for each stage."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn import functional

from pipesvc.client.calls import Call
from pipesvc.client.job import DataSource, Job, Optimizer, Strategy
from pipesvc.client.spec import make_submission

JOB = Job(
    model=torch.nn.Identity,
    loss=functional.cross_entropy,
    optimizer=Optimizer(torch.optim.SGD),
    data=DataSource(functional.relu, batch_size=8),
)


def test_weights_that_are_drawn_by_name_are_none_to_load() -> None:
    spec = make_submission(dataclasses.replace(JOB, init="by_name")).spec
    assert spec.keys_init_by_name
    assert not spec.HasField("weights")


def test_builders_of_stages_travel_in_order_and_cut_between_all_of_them() -> None:
    model: list[Any] = [Call(functional.relu, inplace=True), functional.relu, functional.silu]
    job = dataclasses.replace(JOB, model=model, name=None, strategy=Strategy(micro_batches=2))
    spec = make_submission(job).spec
    assert [call.target.partition(":")[2] for call in spec.stage_models] == ["relu", "relu", "silu"]
    assert spec.stage_models[0].arguments_json == '{"inplace": true}'
    assert not spec.HasField("model")
    assert list(spec.strategy.boundaries) == [1, 2]
    assert spec.name == "relu"
    assert dataclasses.replace(job, max_steps=3).strategy == job.strategy
