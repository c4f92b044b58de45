"""Tries what a job says of its optimizer before the run starts, on stand-ins for the parameters of the model.

An optimizer takes any name for an option of a group and says nothing, so a slip there would train another run than was
meant; and what it refuses, each stage would refuse minutes later.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor.optimizing import SchedulerChoice, make_optimizer, make_scheduler
from pipesvc.worker.executor.parameter_groups import Allotment, Named, OptimizerChoice, allot

_log = logging.getLogger("pipesvc.inspector")


def try_updates(choice: OptimizerChoice, scheduler: SchedulerChoice | None, parameters: Named, where: Where) -> None:
    """Refuses patterns that match nothing, options that an optimizer does not take, and what asks for more than a
    stage can give. `parameters` are the whole model's."""
    allotment = allot(choice, parameters, where)
    if not allotment.names:
        return  # the loss will say that nothing is trained
    try:
        optimizer = _made(allotment, where)
        _refuse_unknown(allotment, optimizer, where)
        _refuse_needy("the optimizer", optimizer, "Choose one whose step() needs nothing", where)
        if scheduler is not None:
            made = make_scheduler(scheduler, optimizer, where)
            advice = "Choose one that goes by steps or epochs, such as OneCycleLR or StepLR"
            _refuse_needy("the scheduler", made, advice, where)
    except PipesvcError as error:
        if isinstance(error.__cause__, TypeError | ValueError | None):
            raise
        # What else they say may be of the stand-ins' making.
        _log.info("the optimizer was not tried: %s", error)


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


def _refuse_needy(what: str, made: Any, advice: str, where: Where) -> None:
    """Its step() is called without arguments: no stage has a metric of the run, or could repeat a step alone."""
    needed = [
        each.name
        for each in inspect.signature(made.step).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"{what} {type(made).__name__} needs {', '.join(needed)} for each step, which a stage does not have",
            advice=advice,
            where=where,
        )
