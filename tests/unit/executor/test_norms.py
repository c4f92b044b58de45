"""One norm over all stages has the bits of torch's own, whichever stage holds which parameter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pipesvc.worker.executor import norms
from tests.unit.executor.network import Setup, train_both, train_plain
from tests.unit.executor.test_equality import CUTS, OPTIMIZERS, make_batches, make_layers


@pytest.mark.parametrize("seed", range(10))
def test_n26_norms_are_combined_in_the_order_of_the_model(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.zeros(5)) for _ in range(60)]
    for parameter in parameters[:-5]:
        parameter.grad = torch.randn(5, generator=generator)
    stages = [list(range(stage, 60, 3)) for stage in range(3)]
    found = [norms.parameter_norms([parameters[place] for place in places], places) for places in stages]
    scale = norms.coefficient([each or () for each in found], 0.1)
    expected = [each.grad.clone() for each in parameters if each.grad is not None]
    norms.scale_gradients(parameters, scale)
    ours = [each.grad for each in parameters if each.grad is not None]
    for parameter, gradient in zip(parameters, expected, strict=False):
        parameter.grad = gradient
    torch.nn.utils.clip_grad_norm_(parameters, 0.1)
    theirs = [each.grad for each in parameters if each.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_parameters_of_one_place_keep_the_order_of_the_stages() -> None:
    """Layers of a list: their places are those of the layers."""
    generator = torch.Generator().manual_seed(3)
    parts = [[torch.rand(7, generator=generator), torch.full((7,), stage)] for stage in range(3)]
    scale = norms.coefficient(parts, 0.1)
    total = torch.linalg.vector_norm(torch.cat([norm for norm, _ in parts]), 2.0)
    assert torch.equal(scale, torch.clamp(0.1 / (total + 1e-6), max=1.0))


def test_no_gradient_anywhere_scales_nothing() -> None:
    assert norms.parameter_norms([nn.Parameter(torch.ones(2))], [0]) is None
    assert norms.coefficient([(), ()], 0.1).item() == 1.0


def test_n27_two_hundred_steps_with_clipping_do_not_drift() -> None:
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[3],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["adamw"],
        clip_norm=0.1,
    )
    batches = make_batches(2, num_steps=200)
    losses = train_both(setup, batches).losses
    assert len(losses) == 200
    assert losses != train_plain(replace(setup, clip_norm=0.0), batches)[0]
