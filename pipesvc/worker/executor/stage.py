"""One stage: its part of the model, its optimizer and the micro-batches that are alive on it.

The numbers must be those of the unsplit model, so a stage does what one process would do with its part, and no more: a
received tensor becomes an autograd leaf when the producer's tensor required a gradient, backward starts from the
gradients that come back, gradients add up in ascending micro-batch order, and random numbers are seeded by step,
micro-batch and place in the whole model, never by what this process drew before. What is computed, a `StageProgram`
knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.errors import PipesvcError, Where
from pipesvc.model.batch_norm import RunningStatistics
from pipesvc.model.deferral import Late
from pipesvc.model.random_state import same_random_state_after
from pipesvc.worker.executor import losses, measures, norms
from pipesvc.worker.executor.deciding import Decision, Report
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.optimizing import MakeUpdates
from pipesvc.worker.executor.precision import autocast
from pipesvc.worker.executor.program import Forwarded, Gradients, Parcels, StageProgram, failed
from pipesvc.worker.executor.scaling import scaled
from pipesvc.worker.executor.spec import StageSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class _Live:
    """A micro-batch between its forward and its backward."""

    backward: Callable[[Parcels, Tensor | None], Gradients]
    loss: Tensor | None  # on the last stage


class Stage:
    """Called by the runtime in the order of the schedule."""

    def __init__(
        self,
        spec: StageSpec,
        program: StageProgram,
        make_updates: MakeUpdates,
    ) -> None:
        self.spec = spec
        self._program = program
        trainable = {name: each for name, each in program.named_parameters().items() if each.requires_grad}
        self.trainable = list(trainable.values())
        self._places = [program.place_of(name) for name in trainable]
        self.updates = make_updates(trainable)
        self._scale = spec.scale  # of this step's loss
        self._statistics = RunningStatistics(program.own_modules(), is_deferred=spec.defers_batch_norm)
        self._live: dict[int, _Live] = {}
        # Of micro-batches between I and W, which count as alive.
        self._late: dict[int, Late] = {}
        self._losses: dict[int, Tensor] = {}
        # Of an evaluation: the loss and the metrics of each micro-batch that counts.
        self._measured: dict[int, list[float]] = {}
        # By name, what metrics have met that nobody has been told.
        self._failures: dict[str, PipesvcError] = {}
        self._told: set[str] = set()

    @property
    def num_live(self) -> int:
        return len(self._live) + len(self._late)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Each parameter that this stage owns once, under its first name in the unsplit model's state dict."""
        return self._program.named_parameters()

    def tied_parameter(self, name: str) -> nn.Parameter:
        """One that several stages use, by that name."""
        return self._program.tied_parameter(name)

    def begin(self, step: int, epoch: int) -> None:
        """Before the first action of a step."""
        self.updates.begin_epoch(epoch, Where(step=step, stage=self.spec.index))

    def forward(
        self, step: int, micro_batch: int, inputs: Parcels, labels: Parcel | None, share: float = 1.0
    ) -> Mapping[int, Any]:
        """Consumer -> what it gets. On the last stage the loss is kept here and nothing is given."""
        loss = None
        with autocast(self.spec.device, self.spec.autocast):
            with self._statistics.counting():
                found = self._program.forward(step, micro_batch, inputs)
            if self.spec.is_last:
                where = Where(step=step, stage=self.spec.index, micro_batch=micro_batch)
                loss = losses.loss_of(self.spec, found.result, labels, share, where)
                self._losses[micro_batch] = loss.detach()
        self._live[micro_batch] = _Live(backward=found.backward, loss=loss)
        return found.outputs

    def evaluate(
        self, step: int, micro_batch: int, inputs: Parcels, labels: Parcel | None, share: float
    ) -> Mapping[int, Any]:
        """As `forward`, of which nothing is kept but the numbers; the generators are as before."""
        no_grad, casting = torch.no_grad(), autocast(self.spec.device, self.spec.autocast)
        with no_grad, casting, same_random_state_after():
            found = self._program.forward(step, micro_batch, inputs)
            if self.spec.is_last and share:
                where = Where(step=step, stage=self.spec.index, micro_batch=micro_batch)
                measured = measures.measure(self.spec, found.result, labels, where)
                self._measured[micro_batch] = measured.values
                self._failures = measured.failures | self._failures
        return found.outputs

    def predict(self, step: int, micro_batch: int, inputs: Parcels) -> Forwarded:
        """As `forward`, without a graph and a loss."""
        no_grad, casting = torch.no_grad(), autocast(self.spec.device, self.spec.autocast)
        with no_grad, casting, same_random_state_after():
            return self._program.forward(step, micro_batch, inputs)

    def backward(self, step: int, micro_batch: int, gradients: Parcels, share: float) -> Gradients:
        """Receiver -> its gradients. `gradients` came from later stages; the last stage begins with its loss."""
        found = self.input_backward(step, micro_batch, gradients, share)
        self.weight_backward(micro_batch)
        return found

    def input_backward(self, step: int, micro_batch: int, gradients: Parcels, share: float) -> Gradients:
        """The same, but for what of the weights' gradients can wait for `weight_backward`."""
        live = self._live.pop(micro_batch)
        where = Where(step=step, stage=self.spec.index, micro_batch=micro_batch)
        loss = live.loss
        if share == 0:
            # All masked. It counts as nothing, also where its loss is 0 / 0: `0 * nan` would spoil all weights.
            loss = None
        if loss is not None and self.spec.check_finite:
            losses.refuse_not_finite(loss, where)
        if loss is not None:
            loss = loss * share if self._scale is None else scaled(loss * share, self._scale)
        try:
            with self._program.deferral.collecting() as late:
                found = live.backward(gradients, loss)
        except (Exception, KeyboardInterrupt) as cause:
            raise failed("backward", cause, where) from cause
        self._late[micro_batch] = late
        return found

    def weight_backward(self, micro_batch: int) -> None:
        """The micro-batch counts as alive until here: what the gradients are made of is kept."""
        try:
            self._late.pop(micro_batch).accumulate()
        except (Exception, KeyboardInterrupt) as cause:
            where = Where(stage=self.spec.index, micro_batch=micro_batch)
            raise failed("backward of the weights", cause, where) from cause

    def report(self) -> Report:
        """After the last backward (W): what stage 0 must know to decide. Gradients are no longer scaled afterwards."""
        overflowed = [] if self._scale is None else self.updates.unscale(self._scale)
        found = norms.parameter_norms(self.trainable, self._places) if self.spec.clips_norm else None
        return Report(norms=found, overflowed=overflowed)

    def update(self, step: int, decision: Decision | None) -> None:
        """Apply the step once, or skip it; the gradients are gone afterwards."""
        if decision is not None:
            self._scale = decision.scale
            if decision.coefficient is not None:
                norms.scale_gradients(self.trainable, decision.coefficient)
        if self.spec.clip_value:
            norms.clip_values(self.trainable, self.spec.clip_value)
        where = Where(step=step, stage=self.spec.index)
        self._statistics.commit()
        skips = decision.skips if decision is not None else []
        if skips and self.spec.clips_norm:
            skips = list(self.updates.optimizers)  # the norm, by which all were multiplied, was not finite either
        self.updates.apply(where, skips=skips)
        self._program.deferral.settle()

    def take_loss(self, shares: Sequence[float]) -> float | None:
        """The step's loss, the shares of its micro-batches added in ascending order; None but on the last stage."""
        if not self.spec.is_last:
            return None
        total = 0.0
        for micro_batch, share in enumerate(shares):
            if share:
                total += share * self._losses[micro_batch].item()
        self._losses.clear()
        return total

    def take_measured(self, shares: Sequence[float]) -> list[float]:
        """Loss and metrics of a batch, added up like the loss of a step; empty but on the last stage."""
        if not self.spec.is_last:
            return []
        totals = [0.0] * (1 + len(self.spec.metrics))
        for micro_batch, values in sorted(self._measured.items()):
            totals = [total + shares[micro_batch] * value for total, value in zip(totals, values, strict=True)]
        self._measured.clear()
        return totals

    def take_failures(self) -> list[PipesvcError]:
        """What metrics have met, of each the first alone: it may fail in every micro-batch from then on."""
        found = {name: error for name, error in self._failures.items() if name not in self._told}
        self._told.update(found)
        self._failures.clear()
        return list(found.values())

    def roots(self) -> dict[str, nn.Module]:
        return self._program.roots()

    def shared_names(self) -> dict[str, nn.Parameter]:
        return self._program.shared_names()

    def state_dict(self) -> Mapping[str, Any]:
        """By the names of the unsplit model."""
        return self._program.state_dict()
