"""Tries what a job says of its optimizer before the run starts, on stand-ins for the parameters of the model.

An optimizer takes any name for an option of a group and says nothing, so a slip there would train another run than was
meant; and what it refuses, each stage would refuse minutes later.
"""

from __future__ import annotations

import logging

import torch

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor.optimizing import make_optimizer
from pipesvc.worker.executor.parameter_groups import Allotment, Named, OptimizerChoice, allot

_log = logging.getLogger("pipesvc.inspector")


def try_optimizer(choice: OptimizerChoice, parameters: Named, where: Where) -> None:
    """Refuses patterns that match nothing, and options that it does not take. `parameters` are the whole model's."""
    allotment = allot(choice, parameters, where)
    if not allotment.names:
        return  # the loss will say that nothing is trained
    try:
        made = _made(allotment, where)
    except PipesvcError as error:
        if isinstance(error.__cause__, TypeError | ValueError | None):
            raise
        # What else it says may be of the stand-ins' making.
        _log.info("the optimizer was not tried: %s", error)
        return
    _refuse_unknown(allotment, made, where)


def _made(allotment: Allotment, where: Where) -> torch.optim.Optimizer:
    """Over one small matrix for each group."""
    firsts = [allotment.names[0]] if allotment.groups is None else [group.names[0] for group in allotment.groups]
    return make_optimizer(allotment, {name: torch.nn.Parameter(torch.zeros(1, 1)) for name in firsts}, where)


def _refuse_unknown(allotment: Allotment, made: torch.optim.Optimizer, where: Where) -> None:
    for group in allotment.groups or ():
        unknown = sorted(group.options.keys() - made.defaults.keys())
        if unknown:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"groups gives {group.names[0]!r} the option {unknown[0]!r}, which {type(made).__name__} does not have",
                advice=f"It has {', '.join(sorted(made.defaults))}",
                where=where,
            )
