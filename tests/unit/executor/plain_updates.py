"""The end of a step in a plain loop: what its user does between the last backward and the next forward."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tests.unit.executor.network import JobSetup


class PlainUpdates:
    """Optimizers, schedulers and clipping over the whole model, in torch's own words where it has them."""

    def __init__(self, setup: JobSetup, model: nn.Module) -> None:
        self._setup = setup
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.optimizers = (
            [setup.make_optimizer(self.parameters)] if setup.plain_optimizers is None else setup.plain_optimizers(model)
        )
        scaler = setup.scaler
        self._scaler = (
            torch.amp.GradScaler("cpu", enabled=False)
            if scaler is None
            else torch.amp.GradScaler("cpu", **asdict(scaler))
        )
        choice = setup.scheduler
        self.schedulers = [choice.make(each) for each in self.optimizers] if choice is not None else []

    def autocast(self) -> torch.autocast:
        dtype = self._setup.autocast
        return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)

    def scaled(self, loss: Tensor) -> Any:
        return self._scaler.scale(loss)

    def apply(self, step: int) -> None:
        setup = self._setup
        for optimizer in self.optimizers:
            self._scaler.unscale_(optimizer)
        # pipesvc's one rule beside torch's: no optimizer updates with a norm that is not finite.
        overflowed = setup.scaler is not None and not all(
            bool(values.isfinite().all())
            for each in self.parameters
            if each.grad is not None
            for values in [each.grad._values() if each.grad.is_sparse else each.grad]
        )
        self._clip()
        for optimizer in self.optimizers:
            if not (overflowed and setup.clip_norm):
                self._scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        self._scaler.update()
        setup.plain_scales.append(self._scaler.get_scale())
        is_end = setup.epoch(step + 1) > setup.epoch(step)
        if setup.scheduler is not None and (is_end or not setup.scheduler.is_by_epoch):
            for scheduler in self.schedulers:
                scheduler.step()

    def _clip(self) -> None:
        setup = self._setup
        if not (setup.clip_norm or setup.clip_value):
            return
        stand_ins = []
        for each in self.parameters:
            if each.grad is not None:
                if each.grad.is_sparse:  # torch clips none, but the rows that are there, each once
                    each.grad = each.grad.coalesce()
                rows = each.grad.values() if each.grad.is_sparse else each.grad
                stand_ins.append(nn.Parameter(torch.empty_like(rows)))
                stand_ins[-1].grad = rows
        if setup.clip_norm:
            nn.utils.clip_grad_norm_(stand_ins, setup.clip_norm)
        if setup.clip_value:
            nn.utils.clip_grad_value_(stand_ins, setup.clip_value)
