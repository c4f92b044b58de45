"""Backwards in two halves: gradients of inputs first (I), gradients of weights when there is time (W).

Cutting the graph in two passes costs a fifth to a third of a backward, since the operations between both halves run in
both. Here nothing runs twice: a `nn.Linear` computes the gradient of its input and puts its input and the gradient of
its output aside, of which W makes the gradients of weight and bias. The rest of a stage (norms, embeddings,
convolutions, weights that are used without their module) stays in I, which is always right.

W must give the bits of one process. So it multiplies and adds as autograd does: of one micro-batch, the gradients of
all calls of a weight are summed, the latest call first, and then added to what earlier micro-batches left. Whether
that is all the gradient a weight gets cannot be seen from its module: other code may use it too, or a hook may change
it. So in the first step backwards are whole, and a weight is deferred from then on if what W would have computed is,
bit for bit, what autograd did (`Deferral.settle`).

What runs does not depend on where it runs: within a step a module always takes the same way, so recomputation saves
the same tensors as the forward did. State is held here, not in a context of the thread: autograd may recompute on
another one. Source of the idea: the split of Qi et al. 2023, arXiv:2401.10241.

Legend: x input, g gradient of the output, rows all dimensions but the last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipesvc.model.linear import Affine, AffineCall, affine_of

_log = logging.getLogger("pipesvc.deferral")


class _Way(Enum):
    """How the backward of a group runs."""

    WATCHED = "whole, and compared"
    DEFERRED = "split"
    WHOLE = "whole"


class _Group:
    """Modules that share weights: all of them are split, or none."""

    def __init__(self, layers: list[Affine]) -> None:
        self.layers = layers
        self.parameters = list({id(each): each for layer in layers for each in layer.trainable}.values())
        self.way = _Way.WATCHED
        self.next_way: _Way | None = None  # from the next step on
        self._left: dict[int, tuple[Tensor, int]] = {}  # the gradients after the last W of this step

    def add(self, calls: list[_Call]) -> None:
        """Of one micro-batch."""
        for parameter, gradient in _sums(calls):
            before, left = parameter.grad, self._left.get(id(parameter))
            if (before is None) != (left is None) or (left and (left[0] is not before or left[1] != before._version)):
                # Something else added too. The sum is right, but not in the order of one process.
                self.next_way = _Way.WHOLE
            if before is None:
                parameter.grad = before = gradient
            else:
                before += gradient
            self._left[id(parameter)] = before, before._version

    def settle(self) -> None:
        self._left = {}
        if self.next_way is not None and self.next_way is not self.way:
            self.way = self.next_way
            if self.way is _Way.WHOLE:
                kinds = ", ".join(sorted({type(layer.module).__name__ for layer in self.layers}))
                sizes = ", ".join(str(list(each.shape)) for each in self.parameters)
                _log.info("the backward of %s with weights %s is not split: they get other gradients too", kinds, sizes)


_Call = tuple[Affine, AffineCall]  # of a micro-batch, as its backward left it


class Late:
    """What a micro-batch's I has left to its W."""

    def __init__(self) -> None:
        self._calls: dict[_Group, list[_Call]] = {}  # each in the order of the backward

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    def put(self, group: _Group, call: _Call) -> None:
        self._calls.setdefault(group, []).append(call)

    def take(self, group: _Group) -> list[_Call]:
        return self._calls.pop(group, [])

    def accumulate(self) -> None:
        """W: adds the gradients to their parameters, and lets go of what it needed."""
        with torch.no_grad():
            while self._calls:
                group, calls = self._calls.popitem()
                group.add(calls)


class Deferral:
    """Of one stage. `modules` are those whose backward may be split; without any, nothing is changed.

    The weights in `kept` always stay with I: other stages wait for their gradients.
    """

    def __init__(self, modules: Iterable[nn.Module] = (), kept: Collection[nn.Parameter] = ()) -> None:
        self._groups = _groups(modules, kept)
        self._watched = list(self._groups)
        self._compared: list[_Group] = []  # in the backward that runs
        self._late: Late | None = None
        for group in self._groups:
            for layer in group.layers:
                layer.module.__dict__["forward"] = self._forward(group, layer)

    @property
    def num_split(self) -> int:
        """Modules whose backward is split now."""
        return sum(len(group.layers) for group in self._groups if group.way is _Way.DEFERRED)

    @contextmanager
    def collecting(self) -> Iterator[Late]:
        """For the backward of one micro-batch; what it gives is complete afterwards."""
        # The first micro-batch of a step, before which there are no gradients, is compared.
        self._compared = [
            group
            for group in self._watched
            if group.next_way is None and all(parameter.grad is None for parameter in group.parameters)
        ]
        self._late = late = Late()
        try:
            yield late
        finally:
            self._late = None
        for group in self._compared:
            calls = late.take(group)
            if calls:
                group.next_way = _verdict(group, calls)

    def settle(self) -> None:
        """Between two steps, when no micro-batch is alive: from the next one on, each module goes its own way."""
        for group in self._groups:
            group.settle()
        self._watched = [group for group in self._watched if group.way is _Way.WATCHED]

    def note(self, group: _Group, layer: Affine, call: AffineCall) -> bool:
        """True where W, or the comparison, will do the rest."""
        if self._late is None or (group.way is _Way.WATCHED and group not in self._compared):
            return False
        self._late.put(group, (layer, call))
        return True

    def _forward(self, group: _Group, layer: Affine) -> Callable[..., Any]:
        original = layer.own_forward()
        # A forward during a backward is a recomputation. What the engine goes through right there (reentrant
        # checkpoints) adds to the gradients right there, too, so nothing of it is noted.
        noted, unnoted = _Place(self, group, layer), _Place(None, group, layer)

        def forward(*args: Any, **kwargs: Any) -> Any:
            """The module's own forward, to which autograd gives another backward."""
            if group.way is _Way.WHOLE or not torch.is_grad_enabled() or len(args) + len(kwargs) != 1:
                return original(*args, **kwargs)
            x = args[0] if args else next(iter(kwargs.values()))
            if not layer.takes(x):
                return original(*args, **kwargs)
            place = noted if self._late is None else unnoted
            if group.way is _Way.WATCHED:
                return _Watched.apply(original(x), x, place)  # type: ignore[no-untyped-call]
            kind = x.device.type
            if torch.is_autocast_enabled(kind) and x.dtype is not torch.float64:
                x = x.to(torch.get_autocast_dtype(kind))
            return _Split.apply(x, layer.weight, layer.bias, place)  # type: ignore[no-untyped-call]

        return forward


class _Place(NamedTuple):
    """Where a backward belongs; `deferral` is None where nothing of it may wait."""

    deferral: Deferral | None
    group: _Group
    layer: Affine

    def note(self, call: AffineCall) -> bool:
        return self.deferral is not None and self.deferral.note(self.group, self.layer, call)


class _Watched(torch.autograd.Function):
    """The identity on the output of a module; sees what its backward gets."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, place: _Place) -> Tensor:
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        ctx.place = place
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        (x,) = ctx.saved_tensors
        if g is not None:
            ctx.place.note(AffineCall(x, g))
        return g, None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, place: _Place) -> Tensor:
        if weight.dtype is not x.dtype:
            # As autocast does, but apart from its cache, which would keep for others what is cast without a graph.
            weight = weight.to(x.dtype)
            bias = None if bias is None else bias.to(x.dtype)
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        ctx.place = place
        y = place.layer.compute(x, weight, bias)
        return y.detach()  # no view, so that what follows may work in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        if g is None:
            return None, None, None, None
        x, weight = ctx.saved_tensors
        layer, call = ctx.place.layer, AffineCall(x, g)
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            weight = layer.weight.to(weight.dtype)
            call.rows = x.reshape(-1, x.shape[-1])
        for_x = layer.input_gradient(call, weight) if ctx.needs_input_grad[0] else None
        if ctx.place.note(call):
            return for_x, None, None, None
        found = {id(parameter): gradient for parameter, gradient in layer.gradients(call)}
        return for_x, found.get(id(layer.weight)), found.get(id(layer.bias)), None


def _sums(calls: list[_Call]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter with the sum of its gradients; what autocast made smaller is summed small."""
    sums: dict[int, tuple[nn.Parameter, Tensor]] = {}
    for layer, call in calls:
        for parameter, gradient in layer.gradients(call):
            before = sums.get(id(parameter))
            sums[id(parameter)] = parameter, gradient if before is None else before[1] + gradient
    for parameter, gradient in sums.values():
        yield parameter, gradient if gradient.dtype is parameter.dtype else gradient.to(parameter.dtype)


def _verdict(group: _Group, calls: list[_Call]) -> _Way | None:
    """Whether the gradients that are there, the first ones of a step, are all of these calls' making."""
    sums = list(_sums(calls))
    if not all(bool(torch.isfinite(gradient).all()) for _, gradient in sums):
        return None  # another step will tell
    found = {id(parameter) for parameter, _ in sums}
    is_all = all(id(parameter) in found or parameter.grad is None for parameter in group.parameters)
    is_same = is_all and all(
        parameter.grad is not None and torch.equal(parameter.grad, gradient) for parameter, gradient in sums
    )
    return _Way.DEFERRED if is_same else _Way.WHOLE


def _groups(modules: Iterable[nn.Module], kept: Collection[nn.Parameter]) -> list[_Group]:
    held = {id(module): module for module in modules}.values()
    refused = {id(parameter) for parameter in kept}
    layers = []
    for module in held:
        layer = affine_of(module)
        if layer is None:
            refused.update(map(id, module._parameters.values()))
        else:
            layers.append(layer)
    groups: dict[int, _Group] = {}  # by parameter
    for layer in layers:
        own = {id(each): each for each in layer.trainable}
        if not own.keys().isdisjoint(refused):
            refused.update(own)
            continue
        joined = {id(each): each for key in own if (each := groups.get(key)) is not None}.values()
        group = _Group([*(each for one in joined for each in one.layers), layer])
        groups.update({id(each): group for each in group.parameters})
    whole = list({id(group): group for group in groups.values()}.values())
    # A module that was refused after another one with the same weight had been taken.
    return [group for group in whole if refused.isdisjoint(map(id, group.parameters))]
