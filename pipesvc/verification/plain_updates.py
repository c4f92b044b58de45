"""The end of a step of the plain loop: clipping, optimizers and schedulers, by torch itself.

Which parameter belongs to which group is what the job says, so it is read by the same rule as in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.client.calls import Call, Optimizer, as_call
from pipesvc.client.job import Job
from pipesvc.errors import Where
from pipesvc.worker.executor.optimizing import make_optimizer
from pipesvc.worker.executor.parameter_groups import OptimizerChoice, allot


def called(call: Callable[..., Any] | Call) -> Callable[..., Any]:
    """The function with the arguments that the job gives it."""
    found = as_call(call, what="function")
    return partial(found.function, **found.arguments, **found.functions)


class PlainUpdates:
    """Over all parameters of the model, by their names."""

    def __init__(self, job: Job, parameters: Mapping[str, nn.Parameter]) -> None:
        self._job = job
        self._parameters = [each for each in parameters.values() if each.requires_grad]
        allotments = allot(_choices(job), parameters, Where())
        self._optimizers = [make_optimizer(each, parameters, Where()) for each in allotments if each.names]
        make = None if job.scheduler is None else called(job.scheduler)
        self._schedulers = [] if make is None else [make(each) for each in self._optimizers]
        self._scaler = _scaler(job)
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """Before each step, with its epoch."""
        if self._job.scheduler is not None and self._job.scheduler.every == "epoch":
            for _ in range(epoch - self._epoch):
                self._step_schedulers()
        self._epoch = epoch

    def scaled(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def apply(self) -> None:
        for optimizer in self._optimizers:
            self._scaler.unscale_(optimizer)
        # One norm scales the gradients of all optimizers, so that none may update with one that is not finite.
        skips_all = self._job.clip_norm is not None and self._scaler.is_enabled() and not _are_finite(self._parameters)
        if self._job.clip_norm is not None:
            nn.utils.clip_grad_norm_(_dense(self._parameters), self._job.clip_norm)
        if self._job.clip_value is not None:
            nn.utils.clip_grad_value_(_dense(self._parameters), self._job.clip_value)
        for optimizer in self._optimizers:
            # Of an optimizer without a gradient, torch's scaler refuses the step.
            if not skips_all and _have_gradients(optimizer):
                self._scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        self._scaler.update()
        if self._job.scheduler is not None and self._job.scheduler.every == "step":
            self._step_schedulers()

    def _step_schedulers(self) -> None:
        for scheduler in self._schedulers:
            scheduler.step()


def _scaler(job: Job) -> torch.amp.GradScaler:
    if job.scaler is None:
        return torch.amp.GradScaler("cpu", enabled=False)
    return torch.amp.GradScaler("cpu", **asdict(job.scaler))


def _choices(job: Job) -> list[OptimizerChoice]:
    optimizers = {"*": job.optimizer} if isinstance(job.optimizer, Optimizer) else job.optimizer
    return [
        OptimizerChoice(
            pattern=pattern,
            make=called(each),
            groups=each.groups if isinstance(each.groups, Mapping) else {},
            rule=called(each.groups) if isinstance(each.groups, Call) else None,
        )
        for pattern, each in optimizers.items()
    ]


def _are_finite(parameters: Iterable[nn.Parameter]) -> bool:
    gradients = [each.grad for each in parameters if each.grad is not None]
    return all(bool((each._values() if each.is_sparse else each).isfinite().all()) for each in gradients)


def _have_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(each.grad is not None for group in optimizer.param_groups for each in group["params"])


def _dense(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """For torch, which clips no sparse gradients: one whose gradient is the rows of such a one, in its place."""
    found: list[nn.Parameter] = []
    for each in parameters:
        if each.grad is not None and each.grad.is_sparse:
            each.grad = each.grad.coalesce()
            rows = each.grad.values()
            stand_in = nn.Parameter(torch.empty_like(rows))
            stand_in.grad = rows
            found.append(stand_in)
        else:
            found.append(each)
    return found
