"""What each step of a forward means to one stage (see `run`, which is what others call)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.ghosts import META, shape_of, user_line
from pipesvc.model.modes import Operators
from pipesvc.model.replay import nest
from pipesvc.model.replay.ghost import Ghost, ghost, plain_tensors
from pipesvc.model.replay.guards import unit_of_guard
from pipesvc.model.replay.operations import (
    DEVICE_QUESTIONS,
    FORMAT,
    GRADIENT_QUESTION,
    Key,
    on_shapes,
    on_shapes_with_values,
    operands_of,
    versions,
)
from pipesvc.model.replay.part import Part, text_of
from pipesvc.model.replay.program import Forward, Program
from pipesvc.model.replay.shapes import Answer, Memo, Shape, answer_of, signature_of

_INPUT: Key = (-1, -1, -1)


class StageEnd(BaseException):
    """The first unit of the next stage is called."""


class StageRun(Program):
    def __init__(self, part: Part, device: torch.device, memo: Memo, received: dict[Key, Tensor]) -> None:
        super().__init__(part.units)
        self._part = part
        self._device = device
        self._memo = memo
        self._received = received
        self._buffers = part.buffer_ids()
        self._stage = 0
        self._label = ""
        self.on_begin: Callable[[], object] | None = None
        self.kept: dict[Key, Tensor] = {}

    def begin(self, path: str, leaf: Tensor) -> Tensor:
        """An input as forward sees it. One in floating point is a stand-in until this stage begins."""
        is_read = path in self._part.inputs
        if is_read and leaf.device == META:
            raise PipesvcError(
                ErrorCode.INTERNAL, f"stage {self._part.stage} reads the input {path!r}, which is missing"
            )
        is_computed = leaf.is_floating_point() or leaf.is_complex()
        if is_read and (self._part.stage == 0 or not is_computed):
            return leaf.to(self._device)
        stand_in = ghost(shape_of(leaf), _INPUT, wants_gradient=False)
        if is_read:
            stand_in.received = leaf.to(self._device)
        return stand_in

    def unit_called(
        self, name: str, unit: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._reach(self._part.stage_of[name])
        if self._is_before:
            with plain_tensors():
                return self._skip(name, unit, forward, args, kwargs)
        args, kwargs = self.real(args), self.real(kwargs)
        with self.unwatched():
            outputs = forward(*args, **kwargs)
        wanted = self._part.wanted.get((self.call, 0))
        if wanted is not None:
            self._keep(wanted, nest.tensors(outputs), nest.tensors((args, kwargs)))
        return outputs

    def operated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = operands_of(args, kwargs)
        if self._is_before and any(map(self._is_computed, operands)):
            with plain_tensors():
                return self._on_shapes(func, args, kwargs, operands)
        if any(isinstance(each, Ghost) for each in operands):
            args, kwargs = self.real(args), self.real(kwargs)
        outputs = func(*args, **kwargs)
        wanted = self._part.wanted.get((self.call, self.operation))
        if wanted is not None and not self._is_before:
            self._keep(wanted, operands_of((outputs,), {}), operands_of(args, kwargs))
        return outputs

    def asked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        subject = args[0] if args else None
        if isinstance(subject, Ghost):
            known = None if self._is_before else self._find(subject)
            if known is not None:
                return func(known, *args[1:], **kwargs)
            if func == GRADIENT_QUESTION:
                return subject.wants_gradient
            with plain_tensors():
                if func == FORMAT:
                    return repr(subject.as_subclass(Tensor))
                if func not in DEVICE_QUESTIONS:
                    return func(*args, **kwargs)
        if func in DEVICE_QUESTIONS and (
            isinstance(subject, Ghost) or (isinstance(subject, Tensor) and subject.device == META)
        ):
            return DEVICE_QUESTIONS[func](self._device)
        return func(*args, **kwargs)

    def guard_entered(self, label: str) -> None:
        if self.is_inside or label == self._label:
            return
        self._label = label
        self._reach(self._part.stage_of[unit_of_guard(label).name])

    def real(self, value: Any) -> Any:
        """The nest with every stand-in replaced by what was received for it."""
        return nest.transform(value, self._real)

    @property
    def _is_before(self) -> bool:
        return self._stage < self._part.stage

    def _reach(self, stage: int) -> None:
        if self.on_begin is not None and self._stage < self._part.stage <= stage:
            self.on_begin()
        self._stage = max(self._stage, stage)
        self.next_call()
        if self._stage > self._part.stage:
            raise StageEnd

    def _is_computed(self, tensor: Tensor) -> bool:
        return isinstance(tensor, Ghost | nn.Parameter) or id(tensor) in self._buffers

    def _find(self, stand_in: Ghost) -> Tensor | None:
        if stand_in.received is None:
            keys = (stand_in.key, *stand_in.same)
            stand_in.received = next((self._received[key] for key in keys if key in self._received), None)
        return stand_in.received

    def _real(self, leaf: Any) -> Any:
        if not isinstance(leaf, Ghost):
            return leaf
        found = self._find(leaf)
        if found is None:
            raise PipesvcError(
                ErrorCode.STAGE_FAILED,
                f"{user_line()} uses a tensor of an earlier stage that was not sent (value {text_of(leaf.key)})",
                advice="The steps of forward must not depend on sizes that planning did not see, or on values.",
            )
        return found

    def _keep(self, wanted: list[int], outputs: list[Tensor], operands: list[Tensor]) -> None:
        for leaf in wanted:
            if leaf < len(outputs):
                tensor = outputs[leaf] if leaf >= 0 else operands[-1 - leaf]
                self.kept[self.call, self.operation, leaf] = tensor

    def _skip(self, name: str, unit: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def shapes(value: Any) -> Any:
            return nest.transform(value, _shape)

        def answer() -> Answer:
            with torch.no_grad():
                return answer_of(name, unit, forward, shapes(args), shapes(kwargs))

        known = self._memo.get(signature_of(name, unit, args, kwargs), answer)
        operands = nest.tensors((args, kwargs))
        wants_gradient = torch.is_grad_enabled()
        given: dict[int, Tensor] = {}
        leaf = -1

        def stand_in(shape: Any) -> Any:
            nonlocal leaf
            if not isinstance(shape, Shape):
                return shape
            leaf += 1
            meta = operands[shape.operand] if shape.operand >= 0 else given.get(id(shape))
            wants = wants_gradient and shape.dtype.is_floating_point
            made = meta if isinstance(meta, Ghost) else shape.make()
            is_written = shape.operand in known.written
            found = ghost(made, (self.call, 0, leaf), wants_gradient=wants, is_written=is_written)
            given[id(shape)] = found
            return found

        outputs = nest.transform(known.outputs, stand_in)
        self._rekey_written([(index, operands[index]) for index in known.written], nest.tensors(outputs))
        return outputs

    def _on_shapes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]) -> Any:
        before = versions(operands)
        wants_gradient = func is not Tensor.detach and torch.is_grad_enabled() and any(map(_wants_gradient, operands))
        with torch.no_grad():
            try:
                if (self.call, self.operation) in self._part.random_operations and self._device.type == "cpu":
                    with Operators(does_draw=True, large_bytes=None):
                        outputs = on_shapes(func, args, kwargs)
                else:
                    outputs = on_shapes(func, args, kwargs)
            except (RuntimeError, TypeError):
                outputs = on_shapes_with_values(func, args, kwargs)
        leaf = -1

        def stand_in(output: Any) -> Any:
            nonlocal leaf
            if not isinstance(output, Tensor):
                return output
            leaf += 1
            wants = wants_gradient and output.is_floating_point()
            key, is_written = (self.call, self.operation, leaf), id(output) in written_ids
            return ghost(output, key, wants_gradient=wants, is_written=is_written)

        after = versions(operands)
        written = [(index, operands[index]) for index in range(len(operands)) if before[index] != after[index]]
        written_ids = {id(tensor) for _, tensor in written}
        outputs = nest.transform(outputs, stand_in)
        self._rekey_written(written, operands_of((outputs,), {}))
        return outputs

    def _rekey_written(self, written: list[tuple[int, Tensor]], outputs: list[Tensor]) -> None:
        given = {id(output) for output in outputs}
        for index, tensor in written:
            if isinstance(tensor, Ghost) and id(tensor) not in given:
                key = (self.call, self.operation, -1 - index)
                ghost(tensor, key, wants_gradient=tensor.wants_gradient)


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, Ghost):
        return leaf.as_subclass(Tensor)
    return shape_of(leaf) if isinstance(leaf, Tensor) else leaf


def _wants_gradient(tensor: Tensor) -> bool:
    return tensor.wants_gradient if isinstance(tensor, Ghost) else tensor.requires_grad
