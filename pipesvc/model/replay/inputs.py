"""The arguments of a model for one micro-batch, and the names of the tensors in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipesvc.model.replay import nest


@dataclass(frozen=True, slots=True)
class Inputs:
    """`model(*args, **kwargs)`. A tensor's path is its place in `args` ("0", "0.user") or `kwargs` ("input_ids")."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        return {".".join(path): leaf for path, leaf in self._leaves() if isinstance(leaf, Tensor)}

    def transform(self, change: Callable[[str, Tensor], Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with each tensor changed by its path; containers are new where they hold one."""
        paths = iter([".".join(path) for path, leaf in self._leaves()])

        def leaf_changed(leaf: Any) -> Any:
            path = next(paths)
            return change(path, leaf) if isinstance(leaf, Tensor) else leaf

        args = nest.transform(self.args, leaf_changed)
        return args, nest.transform(dict(self.kwargs), leaf_changed)

    def with_one_more_row(self) -> Inputs:
        """The first row of each tensor comes twice; a tensor without rows stays."""
        tensors = list(self.tensors().values())
        num_rows = next((len(each) for each in tensors if each.dim()), 0)

        def longer(path: str, leaf: Tensor) -> Tensor:
            if num_rows and leaf.dim() and len(leaf) == num_rows:
                return torch.cat([leaf, leaf[:1]])
            return leaf

        args, kwargs = self.transform(longer)
        return Inputs(args, kwargs)

    def _leaves(self) -> list[tuple[nest.Path, Any]]:
        return [*nest.leaves(self.args), *nest.leaves(dict(self.kwargs))]
