"""One run of the forward on meta, in which everything is written into a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from pipesvc.core.flow import Flow
from pipesvc.core.layer_info import LayerInfo
from pipesvc.model.ghosts import META, UnreadableError, is_about_ghosts, shape_of, user_line
from pipesvc.model.marks import mark_of, open_guard
from pipesvc.model.modes import Operators
from pipesvc.model.replay import frames, nest, refusals
from pipesvc.model.replay.draws import Draws
from pipesvc.model.replay.guards import GuardInsideUnitError, unit_of_guard
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.ledger import Ledger
from pipesvc.model.replay.operations import (
    DEVICE_QUESTIONS,
    FORMAT,
    bounds_of,
    on_shapes,
    on_shapes_with_values,
    operands_of,
    shapes,
    versions,
)
from pipesvc.model.replay.program import Forward, Program
from pipesvc.model.replay.shapes import PLAIN_TYPES, run_on_shapes
from pipesvc.model.replay.state import changes_by_class, tensors_held

_CPU: Final = torch.device("cpu")


class Recording(Program):
    def __init__(self, model: nn.Module, units: Mapping[str, nn.Module]) -> None:
        super().__init__(units)
        self._model = model
        self._ledger = Ledger(model)
        self._draws = Draws(model)
        self._random_operations: list[str] = []
        self._label = ""
        self._current = ""
        self.lines: dict[str, str] = {}  # unit -> where it was called first

    def run(self, inputs: Inputs) -> Flow:
        args, kwargs = inputs.transform(self._ledger.begin_input)
        with self._draws.watching(), self.active():
            result = self._model(*args, **kwargs)
        for tensor in nest.tensors(result):
            self._ledger.use(tensor)
        return self._ledger.flow(filter(None, self._draws.modules), self._random_operations)

    def unit_called(
        self, name: str, unit: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._current = name
        index = self._arrive(name, unit)
        self._ledger.note_checkpoint()
        for tensor in nest.tensors((args, kwargs)):
            self._ledger.use(tensor)
        for state in self._ledger.names_in(unit):
            self._ledger.use_state(state)
        copies: list[Tensor] = []

        def shape(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.device == META:
                return leaf
            copies.append(shape_of(leaf))
            return copies[-1]

        args, kwargs = nest.transform((args, kwargs), shape)
        operands, held = nest.tensors((args, kwargs)), [*unit.parameters(), *unit.buffers()]
        before, held_before = versions(operands), versions(held)
        num_draws = self._draws.num_draws
        outputs = run_on_shapes(name, unit, forward, args, kwargs)
        if self._draws.num_draws > num_draws and name not in self._draws.modules:
            raise refusals.forward_called(name, self.lines[name])
        _refuse_objects(name, args, kwargs, outputs)
        if any(versions(copies)):
            raise refusals.written_without_origin(f"unit {name!r}")
        changed = [each for each, old in zip(held, held_before, strict=True) if versions([each]) != [old]]
        if changes_by_class(unit) or changed:
            self._ledger.join(index, refusals.called_again(name))
        self._ledger.change(changed)
        self._ledger.note_results((self.call, 0), nest.tensors(outputs), operands, before)
        return outputs

    def operated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = operands_of(args, kwargs)
        num_draws = self._draws.num_draws
        if bounds := bounds_of(args):
            self._read(func, bounds)
        if any(map(self._ledger.is_computed, operands)):
            outputs = self._computed(func, args, kwargs, operands)
        else:
            outputs = self._plain(func, args, kwargs, operands)
        if self._draws.num_draws > num_draws:
            self._random_operations.append(f"{self.call}.{self.operation}")
        return outputs

    def asked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Tensor) and args[0].device == META:
            if func in DEVICE_QUESTIONS:
                return DEVICE_QUESTIONS[func](_CPU)
            if func == FORMAT:
                return repr(args[0])
        return func(*args, **kwargs)

    def guard_entered(self, label: str) -> None:
        if self.is_inside:
            raise GuardInsideUnitError(self._current)
        if label == self._label:
            return
        guard = unit_of_guard(label)
        if guard.name in self._ledger.indices:
            raise refusals.guard_goes_back(label, self._label, user_line())
        self._label = label
        self._ledger.reach(guard)
        self.next_call()

    def _arrive(self, name: str, unit: nn.Module) -> int:
        if name not in self._ledger.indices:
            self.lines[name] = user_line()
            mark = open_guard() or mark_of(unit)
            self._ledger.reach(LayerInfo(name=name, type=type(unit).__name__, mark=mark))
        self.next_call()
        return self._ledger.indices[name]

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]) -> Any:
        self._ledger.note_checkpoint()
        if frames.is_in_custom_function():
            raise refusals.custom_function(user_line())
        for tensor in operands:
            self._ledger.use(tensor)
        given = args, kwargs
        args, kwargs = shapes(args), shapes(kwargs)
        shaped = operands_of(args, kwargs)
        num_draws, before = self._draws.num_draws, versions(shaped)
        try:
            outputs = on_shapes(func, args, kwargs)
        except (RuntimeError, TypeError) as error:
            outputs = self._with_values(func, *given, operands, error)
        for tensor, copy, old in zip(operands, shaped, before, strict=True):
            if copy is not tensor and versions([copy]) != [old]:
                raise refusals.written_without_origin(user_line())
        if self._draws.num_draws > num_draws:
            with Operators(does_draw=True, large_bytes=None):  # refuses here what a stage could not skip
                on_shapes(func, args, kwargs)
        self._ledger.note_results((self.call, self.operation), operands_of((outputs,), {}), shaped, before)
        return outputs

    def _with_values(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor], error: Exception
    ) -> Any:
        """Plain operands decide the size of the result, so every stage must know them."""
        plain = [each for each in operands if not self._ledger.is_computed(each)]
        try:
            outputs = on_shapes_with_values(func, args, kwargs)
        except (RuntimeError, TypeError, UnreadableError) as again:
            if not is_about_ghosts(error) and not isinstance(again, UnreadableError):
                raise error from None
            raise refusals.value_read(_text_of(func), user_line(), self._ledger.maker_of(operands)) from error
        if not all(each.device == META for each in operands_of((outputs,), {})):
            raise refusals.value_read(_text_of(func), user_line(), self._ledger.maker_of(operands)) from error
        self._read(func, plain)
        return outputs

    def _read(self, func: Any, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            self._ledger.use(tensor)
            if self._ledger.is_computed(tensor):
                raise refusals.value_read(_text_of(func), user_line(), self._ledger.maker_of([tensor]))
        self._ledger.read_by_all(self._ledger.sources(tensors))

    def _plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]) -> Any:
        for tensor in operands:
            self._ledger.use(tensor)
        sources, is_random = self._ledger.sources(operands), self._ledger.is_random(operands)
        if is_random and func is Tensor.__bool__:
            raise refusals.random_decides(user_line())
        if sources and not _works_on_shapes(func, args, kwargs):
            self._ledger.read_by_all(sources)
        before, num_draws = versions(operands), self._draws.num_draws
        outputs = func(*args, **kwargs)
        is_random = is_random or self._draws.num_draws > num_draws
        if not sources and not is_random:
            return outputs
        written = [each for each, old, new in zip(operands, before, versions(operands), strict=True) if old != new]
        self._ledger.make_plain([*operands_of((outputs,), {}), *written], sources, is_random=is_random)
        return outputs


def _refuse_objects(name: str, args: Any, kwargs: Any, outputs: Any) -> None:
    for _, leaf in nest.leaves(outputs):
        if not isinstance(leaf, (Tensor, *PLAIN_TYPES)):
            raise refusals.foreign_object(name, type(leaf).__name__, "returns", user_line())
    for _, leaf in nest.leaves((args, kwargs)):
        if not isinstance(leaf, (Tensor, *PLAIN_TYPES)) and tensors_held(leaf):
            raise refusals.foreign_object(name, type(leaf).__name__, "is given", user_line())


def _text_of(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    return f"`.{name}()`" if hasattr(Tensor, name) else f"`{name}`"


def _works_on_shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        on_shapes(func, args, kwargs)
    except Exception:
        return False
    return True
