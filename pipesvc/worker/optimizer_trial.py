"""Tries what a job says of its optimizer before the run starts, on stand-ins for the parameters of the model.

An optimizer takes any name for an option of a group and says nothing, so a slip there would train another run than was
meant; and what it refuses, each stage would refuse minutes later.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.layer_infos import sparse_parameters
from pipesvc.model.sequence import NamedLayer, named_parameters
from pipesvc.worker.executor.optimizing import SchedulerChoice, make_optimizer, make_scheduler
from pipesvc.worker.executor.parameter_groups import Allotment, Named, OptimizerChoice, allot

_log = logging.getLogger("pipesvc.inspector")


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """The parameters of the whole model, and the names of those that may have sparse gradients."""

    parameters: Named
    sparse: frozenset[str]

    @classmethod
    def of(cls, parts: Sequence[NamedLayer]) -> Whole:
        parameters = named_parameters(parts)
        sparse = {id(each) for _, part in parts for each in sparse_parameters(part)}
        return cls(
            parameters=parameters, sparse=frozenset(name for name, each in parameters.items() if id(each) in sparse)
        )


def try_updates(
    choices: Sequence[OptimizerChoice], scheduler: SchedulerChoice | None, whole: Whole, where: Where
) -> None:
    """Refuses patterns that match nothing, options that an optimizer does not take, gradients that it does not take,
    and what asks for more than a stage can give."""
    for allotment in allot(choices, whole.parameters, where):
        if not allotment.names:
            continue  # where nothing is trained at all, the loss will say so
        try:
            _try(allotment, scheduler, whole, where)
        except PipesvcError as error:
            if isinstance(error.__cause__, TypeError | ValueError | None) or _is_of_torch(error.__cause__):
                raise
            # What else they say may be of the stand-ins' making.
            _log.info("the optimizer was not tried: %s", error)


def refuse_unscalable(whole: Whole, where: Where) -> None:
    """As torch.amp.GradScaler would in the first step: gradients in float16 overflow before they are unscaled."""
    for name, parameter in whole.parameters.items():
        if parameter.requires_grad and parameter.dtype is torch.float16:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"the parameter {name!r} is in float16, whose gradients a scaler cannot unscale",
                advice='Keep parameters in float32 and compute in float16 with autocast="float16"',
                where=where,
            )


def _try(allotment: Allotment, scheduler: SchedulerChoice | None, whole: Whole, where: Where) -> None:
    stand_ins = _stand_ins(allotment, whole)
    try:
        optimizer = make_optimizer(allotment, stand_ins, where)
    except PipesvcError:
        _refuse_misfit(allotment, stand_ins, whole, where)
        raise
    _refuse_unknown(allotment, optimizer, where)
    _refuse_needy("the optimizer", optimizer, "Choose one whose step() needs nothing", where)
    if scheduler is not None:
        made = make_scheduler(scheduler, optimizer, where)
        advice = "Choose one that goes by steps or epochs, such as OneCycleLR or StepLR"
        _refuse_needy("the scheduler", made, advice, where)
    # Others may do anything in a step, such as to wait for other processes.
    if _is_torchs(type(optimizer).__module__):
        _refuse_gradients(optimizer, stand_ins, whole.sparse, where)


def _stand_ins(allotment: Allotment, whole: Whole) -> dict[str, torch.nn.Parameter]:
    """Parameters of one element, under the first name of each group with so many dimensions and with dense gradients,
    or with sparse ones."""
    groups = [allotment.names] if allotment.groups is None else [group.names for group in allotment.groups]
    dims = {name: whole.parameters[name].ndim for names in groups for name in names}
    firsts = {
        (index, dims[name], name in whole.sparse): name for index, names in enumerate(groups) for name in names[::-1]
    }
    chosen = set(firsts.values())
    return {name: torch.nn.Parameter(torch.zeros((1,) * num_dims)) for name, num_dims in dims.items() if name in chosen}


def _refuse_misfit(allotment: Allotment, stand_ins: Named, whole: Whole, where: Where) -> None:
    """Raises where only some parameters are not taken, such as vectors by Muon: then their shape is at fault."""
    refused: dict[str, PipesvcError] = {}
    for name, stand_in in stand_ins.items():
        try:
            make_optimizer(allotment, {name: stand_in}, where)
        except PipesvcError as error:
            refused[name] = error
    if 0 < len(refused) < len(stand_ins):
        name, refusal = next(iter(refused.items()))
        told = str(refusal.__cause__).replace(str(stand_ins[name].shape), str(whole.parameters[name].shape))
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the optimizer does not take {name!r}: {told}",
            advice=_apart(name, "AdamW"),
            where=where,
        ) from refusal.__cause__


def _refuse_gradients(
    optimizer: torch.optim.Optimizer, stand_ins: Named, sparse: Collection[str], where: Where
) -> None:
    """Gradients of the one kind or the other, of which torch's optimizers refuse one each in their first step."""
    for name, stand_in in stand_ins.items():
        zeros = torch.zeros_like(stand_in)
        stand_in.grad = zeros.to_sparse(1) if name in sparse else zeros
        try:
            optimizer.step()
        except AssertionError as cause:
            _log.info("a step of the optimizer was not tried: %s", cause)  # such as capturable=True, which is for GPUs
            return
        except (RuntimeError, ValueError) as cause:
            kind, other = ("sparse", "SparseAdam") if name in sparse else ("dense", "AdamW")
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"{type(optimizer).__name__} cannot update {name!r}, whose gradients are {kind}: {cause}",
                advice=_apart(name, other) if "gradients" in str(cause) else "Change the arguments of the optimizer",
                where=where,
            ) from None
        stand_in.grad = None


def _apart(name: str, kind: str) -> str:
    return (
        f'Give it an optimizer of its own: optimizer={{"{name}": pipesvc.Optimizer(torch.optim.{kind}, ...), "*": ...}}'
    )


def _is_torchs(module: str) -> bool:
    return f"{module}.".startswith("torch.optim.")


def _is_of_torch(cause: BaseException) -> bool:
    """Whether an optimizer of torch raised it, of its arguments: it takes stand-ins on a CPU like any parameters."""
    *_, (frame, _) = traceback.walk_tb(cause.__traceback__)
    return _is_torchs(frame.f_globals.get("__name__", ""))


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
