"""Which modules draw random numbers, found by watching them: their classes do not say (`F.dropout` in any forward)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode


class Draws(TorchDispatchMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._open: list[str] = []
        self.num_draws = 0
        self.modules: dict[str, None] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in `modes.Operators`."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.num_draws += 1
            self.modules.update(dict.fromkeys(self._open))
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self) -> Iterator[None]:
        def opened(module: nn.Module, args: Any) -> None:
            self._open.append(self._paths.get(id(module), ""))

        def closed(module: nn.Module, args: Any, output: Any) -> None:
            self._open.pop()

        handles = [
            register_module_forward_pre_hook(opened),
            register_module_forward_hook(closed, always_call=True),
        ]
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()
