"""When BatchNorm updates its running statistics: in forward alone, for each micro-batch or once per mini-batch.

A forward that is run again in backward (`torch.utils.checkpoint`) must not count twice: how often torch would update
depends on what is recomputed, and in which order on the schedule.

A micro-batch is normalised by its own statistics in any case, for the others have not come yet. But a plain layer also
takes a step of its running averages for each of them, so that `momentum` means less the more micro-batches there are.
Deferred, the statistics of a step's micro-batches are put together and the running averages take one step towards
those of the whole mini-batch, as torchgpipe's DeferredBatchNorm does. A module that is called several times in a
forward takes one step for each call, as it does in a forward of the whole mini-batch.

The module stays the user's. Where it may not update, it has copies of its buffers while it runs; deferred, also with
`momentum` 1, so that torch's kernels leave the statistics of the micro-batch itself in them: nothing is computed twice.

Mean and variance are combined as by Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing
sample variances", 1979), in float64, each part weighted by its elements: sums of squares would lose the variance of
values far from zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.replay import nest

_STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")


class RunningStatistics:
    """Those of `modules`, by name; what is no BatchNorm with running statistics is left as it is."""

    def __init__(self, modules: Mapping[str, nn.Module], *, is_deferred: bool) -> None:
        known = {id(module): (name, module) for name, module in modules.items()}
        self._kept = [
            _Watched(name, module, is_deferred=is_deferred)
            for name, module in known.values()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        ]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Around the forward of one micro-batch. Outside, no statistics change."""
        for each in self._kept:
            each.begin()
        try:
            yield
        finally:
            for each in self._kept:
                each.is_counting = False

    def commit(self) -> None:
        """At the end of a step."""
        for each in self._kept:
            each.commit()


@dataclass(kw_only=True, slots=True)
class _Moments:
    """Of `count` elements of each channel: mean, and sum of the squared differences from it. Shape (channels,)."""

    count: int
    mean: Tensor
    squares: Tensor

    def add(self, other: _Moments) -> None:
        total = self.count + other.count
        apart = other.mean - self.mean
        self.mean += apart * (other.count / total)
        self.squares += other.squares + apart * apart * (self.count * other.count / total)
        self.count = total


class _Watched:
    """Takes the place of a module's forward."""

    def __init__(self, name: str, module: _BatchNorm, *, is_deferred: bool) -> None:
        self._name = name
        self._is_deferred = is_deferred
        self._module = module
        self._forward = module.forward
        self._is_plain = type(module).forward is _BatchNorm.forward
        self._calls: list[_Moments] = []  # of the first call in each micro-batch, of the second, ...
        self._call = 0
        self.is_counting = False
        module.__dict__["forward"] = self

    def begin(self) -> None:
        self._call = 0
        self.is_counting = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        updates = module.training and module.track_running_stats
        if not updates or (self.is_counting and not self._is_deferred):
            return self._forward(*args, **kwargs)
        own, momentum = dict(module._buffers), module.momentum
        for name in _STATISTICS:
            buffer = own.get(name)
            module._buffers[name] = None if buffer is None else buffer.detach().clone()
        if self._is_deferred:
            module.momentum = 1.0
        try:
            outputs = self._forward(*args, **kwargs)
            found = dict(module._buffers)
        finally:
            module._buffers.update(own)
            module.momentum = momentum
        if self.is_counting:
            given = nest.tensors((args, kwargs))[0].detach()
            if self._is_plain or self._is_counted(given, found):
                self._count(given.numel() // given.size(1), found)
        return outputs

    def commit(self) -> None:
        module, calls = self._module, self._calls
        self._calls = []
        with torch.no_grad():
            for moments in calls:
                factor = self._next_factor()
                for running, value in (
                    (module.running_mean, moments.mean),
                    (module.running_var, moments.squares / (moments.count - 1)),
                ):
                    if running is not None:
                        running.copy_(factor * value + (1 - factor) * running.double())

    def _next_factor(self) -> float:
        """As torch has it: without a momentum the average of all mini-batches so far."""
        module = self._module
        tracked = module.num_batches_tracked
        if tracked is not None:
            tracked.add_(1)
        if module.momentum is not None:
            return module.momentum
        return 0.0 if tracked is None else 1.0 / tracked.item()

    def _count(self, count: int, found: Mapping[str, Tensor | None]) -> None:
        mean, variance = found["running_mean"], found["running_var"]
        assert mean is not None
        assert variance is not None
        moments = _Moments(count=count, mean=mean.double(), squares=variance.double() * (count - 1))
        if self._call == len(self._calls):
            self._calls.append(moments)
        else:
            self._calls[self._call].add(moments)
        self._call += 1

    def _is_counted(self, given: Tensor, found: Mapping[str, Tensor | None]) -> bool:
        """Of a class with a forward of its own: False where it left the statistics alone.

        Refused if it kept any but those of its input, which are then not to be had from it.
        """
        own = self._module._buffers
        if all(_is_same(found[name], own[name]) for name in _STATISTICS):
            return False
        variance, mean = torch.var_mean(given.double(), [0, *range(2, given.dim())])
        for name, wanted in (("running_mean", mean), ("running_var", variance)):
            kept = found[name]
            if kept is None or not torch.allclose(kept.double(), wanted, rtol=1e-2, atol=1e-5, equal_nan=True):
                kind = type(self._module).__name__
                raise PipesvcError(
                    ErrorCode.INVALID_JOB,
                    f"{self._name!r} ({kind}) keeps running statistics in a way of its own",
                    advice='They cannot be deferred: leave out batch_norm="deferred", or use a BatchNorm of torch.',
                )
        return True


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
