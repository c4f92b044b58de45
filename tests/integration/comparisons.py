"""What a job of real processes comes to: the numbers of the plain loop, or an error at submit."""

from __future__ import annotations

import pytest
import torch

import pipesvc
from pipesvc.errors import PipesvcError
from tests.integration.plain import PlainRun


def assert_equal(run: pipesvc.Run, truth: PlainRun) -> None:
    """The same losses, and the same weights by the same names, to the bit."""
    run.wait()
    assert run.losses() == truth.losses
    weights = run.state_dict()
    assert weights.keys() == truth.weights.keys()
    assert [name for name, value in truth.weights.items() if not torch.equal(weights[name], value)] == []


def refusal(cluster: pipesvc.Client, job: pipesvc.Job) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(job)
    return caught.value
