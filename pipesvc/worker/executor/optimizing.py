"""What updates the parameters of a stage: optimizers over its own part, with the groups of the unsplit model, and the
schedulers that change their rates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor.parameter_groups import Allotment, Named
from pipesvc.worker.executor.program import failed
from pipesvc.worker.executor.scaling import unscale
from pipesvc.worker.user_errors import user_error


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerChoice:
    """What a job says of its scheduler."""

    make: Callable[..., Any]
    is_by_epoch: bool  # stepped at the end of each epoch, else after each update


@dataclass(kw_only=True, slots=True)
class Updates:
    """Those of one stage: none where it trains nothing."""

    # By their places in the job.
    optimizers: Mapping[int, torch.optim.Optimizer] = field(default_factory=dict)
    schedulers: Mapping[int, Any] = field(default_factory=dict)
    is_by_epoch: bool = False
    _epoch: int = 0

    def go_on_in(self, epoch: int) -> None:
        """For a training that has come so far."""
        self._epoch = epoch

    def begin_epoch(self, epoch: int, where: Where) -> None:
        """Called before each step with its epoch, from 0: that an epoch has ended shows when the next one begins."""
        if self.is_by_epoch:
            for _ in range(epoch - self._epoch):
                self._step_schedulers(where)
        self._epoch = epoch

    def unscale(self, scale: float) -> list[int]:
        """Divide all gradients; the numbers of the optimizers of which one was not finite."""
        return [
            number
            for number, optimizer in self.optimizers.items()
            if unscale((each for group in optimizer.param_groups for each in group["params"]), scale)
        ]

    def apply(self, where: Where, *, skips: Collection[int] = ()) -> None:
        """One update, but for the optimizers in `skips`; the gradients are gone afterwards.

        A scheduler by step counts skipped steps too, as it does behind `torch.amp.GradScaler.step`.
        """
        for number, optimizer in self.optimizers.items():
            try:
                if number not in skips:
                    optimizer.step()
            except (Exception, KeyboardInterrupt) as cause:
                raise failed(f"update with {type(optimizer).__name__}", cause, where) from cause
            optimizer.zero_grad(set_to_none=True)
        if not self.is_by_epoch:
            self._step_schedulers(where)

    def _step_schedulers(self, where: Where) -> None:
        for scheduler in self.schedulers.values():
            try:
                scheduler.step()
            except (Exception, KeyboardInterrupt) as cause:
                doing = f"stepping the scheduler {type(scheduler).__name__}"
                advice = "It is stepped once for each update (or epoch) of the whole training: let it have as many"
                raise failed(doing, cause, where, advice=advice) from cause


MakeUpdates = Callable[[Named], Updates]


def make_updates(
    allotments: Sequence[Allotment], scheduler: SchedulerChoice | None, own: Named, where: Where
) -> Updates:
    """Of `own` parameters. An optimizer that would have none of them is left out, for it refuses to be made."""
    optimizers = {
        at: make_optimizer(each, own, where)
        for at, each in enumerate(allotments)
        if any(name in own for name in each.names)
    }
    if scheduler is None:
        return Updates(optimizers=optimizers)
    return Updates(
        optimizers=optimizers,
        schedulers={at: make_scheduler(scheduler, each, where) for at, each in optimizers.items()},
        is_by_epoch=scheduler.is_by_epoch,
    )


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


def make_scheduler(choice: SchedulerChoice, optimizer: torch.optim.Optimizer, where: Where) -> Any:
    try:
        made = choice.make(optimizer)
    except Exception as cause:
        doing = f"making the scheduler over {type(optimizer).__name__}"
        raise user_error(ErrorCode.BUILD_FAILED, doing, cause, where=where) from cause
    if not callable(getattr(made, "step", None)):
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the scheduler is a {type(made).__name__}, which has no step()",
            advice="Give one of torch.optim.lr_scheduler, or a function that takes an optimizer and returns one",
            where=where,
        )
    return made
