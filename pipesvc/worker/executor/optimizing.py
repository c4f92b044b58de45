"""The optimizers of a stage: made over its own parameters, with the groups of the unsplit model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor.parameter_groups import Allotment, Named
from pipesvc.worker.user_errors import user_error

MakeOptimizers = Callable[[Named], Sequence[torch.optim.Optimizer]]


def make_optimizers(allotments: Sequence[Allotment], own: Named, where: Where) -> list[torch.optim.Optimizer]:
    """Those that have something of `own` to update: an optimizer refuses to be made over nothing."""
    return [make_optimizer(each, own, where) for each in allotments if any(name in own for name in each.names)]


def make_optimizer(allotment: Allotment, own: Named, where: Where) -> torch.optim.Optimizer:
    """One, with every group of the model; what is wrong with it is told as the user's error."""
    parameters: list[Any]
    if allotment.groups is None:
        parameters = [own[name] for name in allotment.names if name in own]
    else:
        parameters = [
            {**group.options, "params": [own[name] for name in group.names if name in own]}
            for group in allotment.groups
        ]
    try:
        made = allotment.make(parameters)
    except Exception as cause:
        raise user_error(ErrorCode.BUILD_FAILED, "making the optimizer", cause, where=where) from cause
    if not isinstance(made, torch.optim.Optimizer):
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the optimizer is a {type(made).__name__}, not a torch.optim.Optimizer",
            where=where,
        )
    return made
