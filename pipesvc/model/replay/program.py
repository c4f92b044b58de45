"""The user's forward as a program of numbered steps.

No graph is made: the forward itself runs, in every worker, and a torch function mode sees each operation between
units. Calls of units are seen by replacing their `forward` while the run is active, and only then, so that the model
is afterwards as the user made it. Every process numbers the same steps alike, so a number names a tensor everywhere.

The idea of running the program instead of a captured graph is that of eager tracing; the stand-ins on shapes are those
of deferred initialisation (torch's meta device).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn, overrides
from torch.overrides import TorchFunctionMode

from pipesvc.model.replay.guards import guards_seen_by
from pipesvc.model.replay.operations import QUESTIONS

Forward = Callable[..., Any]


class Program(TorchFunctionMode, ABC):
    """Counts; what a step means is for the subclasses, `record` and `run`."""

    def __init__(self, units: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._units = units
        self._is_active = False
        # Inside a unit, or inside an operation, steps are not counted.
        self.is_inside = False
        self.call = 0
        self.operation = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        before = {name: unit.__dict__.get("forward") for name, unit in self._units.items()}
        self._is_active = True
        try:
            for name, unit in self._units.items():
                unit.__dict__["forward"] = self._watched(name, unit, unit.forward)
            with guards_seen_by(self.guard_entered), self:
                yield
        finally:
            self._is_active = False
            for name, unit in self._units.items():
                own = before[name]
                if own is None:
                    unit.__dict__.pop("forward", None)
                else:
                    unit.__dict__["forward"] = own

    def _watched(self, name: str, unit: nn.Module, forward: Forward) -> Forward:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.is_inside or not self._is_active:
                return forward(*args, **kwargs)
            self.is_inside = True
            try:
                return self.unit_called(name, unit, forward, args, kwargs)
            finally:
                self.is_inside = False

        return called

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_inside:
            return func(*args, **kwargs)
        if func in QUESTIONS:
            return self.asked(func, args, kwargs)
        is_iteration = func is Tensor.__iter__
        self.operation += 1
        result = self.operated(cast(Any, Tensor.unbind) if is_iteration else func, args, kwargs)
        return iter(result) if is_iteration else result

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Off the stack of modes: each operation that passes one costs two microseconds. A mode that the user put on
        top of this one must be left there."""
        if overrides._get_current_function_mode() is not self:  # type: ignore[no-untyped-call]
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def next_call(self) -> None:
        self.call += 1
        self.operation = 0

    @abstractmethod
    def unit_called(
        self, name: str, unit: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """`forward` is the unit's own."""

    @abstractmethod
    def operated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation between units."""

    @abstractmethod
    def asked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A question about a tensor between units (`operations.QUESTIONS`)."""

    @abstractmethod
    def guard_entered(self, label: str) -> None:
        """A `device_guard` opened, inside or between units."""
