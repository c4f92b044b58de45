"""What a unit gives, without computing it.

A stage that skips a unit needs the shapes and dtypes of its outputs, for the code that follows. The unit runs once on
meta for each signature of its arguments, and the answer is kept: a skipped block then costs some microseconds. The
signature has shapes, dtypes and plain Python values; an argument of another kind is never kept, since what it stands
for may change without a trace.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipesvc.errors import PipesvcError
from pipesvc.model.ghosts import META, UnreadableError, is_about_ghosts, shape_of
from pipesvc.model.modes import Faces, Operators
from pipesvc.model.replay import nest
from pipesvc.model.replay.operations import versions
from pipesvc.model.replay.refusals import value_read_inside

Forward = Callable[..., Any]

PLAIN_TYPES: Final = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_MOST_KEPT: Final = 4096


class Shape:
    """A tensor of the answer; `operand` is the argument that it is, or -1. No dataclass, so a leaf of its nest."""

    __slots__ = ("dtype", "operand", "size", "stride")

    def __init__(self, tensor: Tensor, operand: int) -> None:
        self.size, self.stride, self.dtype = tensor.size(), tensor.stride(), tensor.dtype
        self.operand = operand

    def make(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=META)


@dataclass(frozen=True, slots=True)
class Answer:
    outputs: Any  # the nest of results, a `Shape` for each tensor
    written: tuple[int, ...]  # the tensor arguments that are written in place


def run_on_shapes(name: str, unit: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
    """The outputs on meta. All tensors of the arguments must be on meta.

    Warnings are left out: those that the unit has cause for come when it runs.
    """
    real = {
        key: shape_of(value)
        for key, value in [*unit.named_parameters(), *unit.named_buffers()]
        if value.device != META  # ours, because another unit of this stage shares it
    }

    def call() -> Any:
        with warnings.catch_warnings(action="ignore"), _without_averages(unit):
            if real:
                return torch.func.functional_call(unit, real, args, kwargs)
            return forward(*args, **kwargs)

    try:
        with torch.device(META):
            return call()
    except PipesvcError:
        raise
    except Exception as error:
        first = error
    # Constants of its own may need values (`linspace(...).tolist()`), or lie on the CPU: once more with those real.
    try:
        with Operators(does_draw=False, large_bytes=None), Faces():
            return call()
    except UnreadableError as error:
        raise value_read_inside(name, error) from first
    except Exception as error:
        if is_about_ghosts(error):
            raise value_read_inside(name, error) from first
        raise error from None


@contextmanager
def _without_averages(unit: nn.Module) -> Iterator[None]:
    """BatchNorm with `momentum=None` reads how many batches it has seen, which decides no shape."""
    averaging = [each for each in unit.modules() if isinstance(each, _BatchNorm) and each.momentum is None]
    for each in averaging:
        each.momentum = 0.0
    try:
        yield
    finally:
        for each in averaging:
            each.momentum = None


def answer_of(name: str, unit: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Answer:
    operands = nest.tensors((args, kwargs))
    places = {id(operand): index for index, operand in enumerate(operands)}
    before = versions(operands)
    outputs = run_on_shapes(name, unit, forward, args, kwargs)
    written = tuple(
        index for index, (old, new) in enumerate(zip(before, versions(operands), strict=True)) if old != new
    )

    shapes: dict[int, Shape] = {}  # one for a tensor that is given twice

    def shape(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return shapes.setdefault(id(leaf), Shape(leaf, places.get(id(leaf), -1)))

    return Answer(nest.transform(outputs, shape), written)


class Memo:
    """Bounded: the least recently used answer goes first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, signature: Any, make: Callable[[], Answer]) -> Answer:
        if signature is None:
            return make()
        answer = self._answers.get(signature)
        if answer is not None:
            self._answers.move_to_end(signature)
            return answer
        answer = self._answers[signature] = make()
        if len(self._answers) > _MOST_KEPT:
            self._answers.popitem(last=False)
        return answer


class _UnkeptError(Exception):
    """The signature holds an object of unknown kind."""


def signature_of(name: str, unit: nn.Module, args: Any, kwargs: Any) -> Any:
    """A key for the memo, or None."""
    try:
        return name, unit.training, _signature(args), _signature(kwargs)
    except _UnkeptError:
        return None


def _signature(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.size(), value.dtype
    if isinstance(value, PLAIN_TYPES):
        return type(value), value  # 1, 1.0 and True are equal
    if isinstance(value, dict):
        return type(value), tuple((key, _signature(each)) for key, each in value.items())
    if nest.is_sequence(value):
        return type(value), tuple(map(_signature, value))
    if nest.is_dataclass(value):
        return type(value), tuple(_signature(leaf) for _, leaf in nest.leaves(value))
    raise _UnkeptError
