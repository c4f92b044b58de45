"""Inputs of a model that a stage does not read: their sizes and types go, their bytes do not.

Every stage runs the whole forward, and so needs all arguments, but the values of those alone that it reads. In the
place of the others stands a text, which the stage turns into a tensor of that size without values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from pipesvc.model.ghosts import META
from pipesvc.model.replay import nest
from pipesvc.wire import tensors

# No text that a data source gives begins with NUL.
_PREFIX: Final = "\0absent"
_TEXT: Final = re.compile(re.escape(_PREFIX) + r" (\d+)((?: \d+)*)")


def paths_of(value: Any) -> tuple[str, ...]:
    """Where its tensors are: keys and indices, joined by full stops."""
    return tuple(".".join(path) for path, leaf in nest.leaves(value) if isinstance(leaf, Tensor))


def without(value: Any, is_read: Callable[[str], bool]) -> Any:
    """The nest with a text in the place of each tensor whose path is not read."""
    paths = iter(paths_of(value))

    def kept(leaf: Any) -> Any:
        return leaf if not isinstance(leaf, Tensor) or is_read(next(paths)) else _text_of(leaf)

    return nest.transform(value, kept)


def with_shapes(value: Any) -> Any:
    """The nest with a tensor on meta in the place of each such text."""
    return nest.transform(value, _shape)


def _text_of(tensor: Tensor) -> str:
    return " ".join(map(str, [_PREFIX, tensors.element_type_of(tensor), *tensor.shape]))


def _shape(leaf: Any) -> Any:
    match = _TEXT.fullmatch(leaf) if isinstance(leaf, str) else None
    if match is None:
        return leaf
    sizes = [int(size) for size in match[2].split()]
    return torch.empty(sizes, dtype=tensors.torch_dtype(int(match[1])), device=META)
