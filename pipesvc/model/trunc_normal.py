"""`nn.init.trunc_normal_` for a tensor that another stage holds.

torch 2.13 redraws the whole tensor until no element lies outside the bounds, so how often it draws depends on every
value: the draws cannot be thrown away unseen. The same rounds are made here block by block; what stays from round to
round is one bit per element, and only for blocks that still have elements outside. torch's own function is private and
skips meta tensors, so it is replaced while building, after a trial has shown that both leave the generator in the
same state; otherwise the call is refused by name. Older releases draw once, uniformly, and bend that into shape: there
torch's own function does for ghosts too, since each operator that it calls is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from pipesvc.model.ghosts import is_ghost
from pipesvc.model.keyed import Keys
from pipesvc.model.scratch import block_elements, blocks, undrawable

_PRIVATE: Final = "_no_grad_trunc_normal_"
_TRIALS: Final = ((0.0, 1.0, -2.0, 2.0), (0.0, 0.02, -2.0, 2.0), (0.5, 1.0, -1.0, 1.0))  # mean, std, low, high
_Function = Callable[..., Tensor]


@contextmanager
def replaced(*, does_draw: bool, keys: Keys | None = None) -> Iterator[None]:
    """torch's function inside, except for ghosts."""
    original: _Function | None = getattr(nn.init, _PRIVATE, None)
    if original is None:  # a torch whose trunc_normal_ is made of plain operators
        yield
        return

    def for_ghosts(
        tensor: Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
    ) -> Tensor:
        if keys is not None and generator is None:
            with keys.as_one_draw(tensor):
                return tensor if is_ghost(tensor) else original(tensor, mean, std, a, b)
        if not is_ghost(tensor):
            return original(tensor, mean, std, a, b, generator=generator)
        if does_draw and draws_once(original):
            return original(tensor, mean, std, a, b, generator=generator)
        if does_draw:
            if not _is_same_as(original) or not tensor.is_contiguous() or not _redraws_normals(mean, std, a, b):
                raise undrawable("trunc_normal_")
            advance(tensor.numel(), tensor.dtype, mean, std, a, b, generator, block_elements(tensor.element_size()))
        return tensor

    setattr(nn.init, _PRIVATE, for_ghosts)
    try:
        yield
    finally:
        setattr(nn.init, _PRIVATE, original)


def advance(
    num_elements: int,
    dtype: torch.dtype,
    mean: float,
    std: float,
    low: float,
    high: float,
    generator: torch.Generator | None,
    block: int,
) -> None:
    """Leaves the generator as the whole call would."""
    sizes = blocks(num_elements, block)
    scratch = torch.empty(max(sizes), dtype=dtype)
    lowest, highest = (torch.tensor(bound, dtype=dtype).item() for bound in (low, high))

    def outside(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        values = scratch[:size].normal_(mean, std, generator=generator)
        return np.packbits(((values < lowest) | (values > highest)).numpy())

    pending: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
    for index, size in enumerate(sizes):
        bits = outside(size)
        if bits.any():
            pending[index] = bits
    while pending:
        for index, size in enumerate(sizes):
            bits = outside(size)
            if index in pending:
                pending[index] &= bits
                if not pending[index].any():
                    del pending[index]


def _redraws_normals(mean: float, std: float, low: float, high: float) -> bool:
    """For narrow bounds torch draws uniformly and rejects by density; those rounds are not repeated here."""

    def below(bound: float) -> float:
        return (1.0 + math.erf((bound - mean) / std / math.sqrt(2.0))) / 2.0

    return below(high) - below(low) > 0.3


@cache
def draws_once(original: _Function) -> bool:
    """Whether torch draws as one `uniform_` does."""
    for num_elements in (5, 64 * 5, 64 * 7 + 5):
        expected, found = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
        original(torch.empty(num_elements), 0.0, 1.0, -2.0, 2.0, generator=expected)
        torch.empty(num_elements).uniform_(-1, 1, generator=found)
        if not torch.equal(expected.get_state(), found.get_state()):
            return False
    return True


@cache
def _is_same_as(original: _Function) -> bool:
    for mean, std, low, high in _TRIALS:
        for num_elements in (5, 64 * 5, 64 * 7 + 5):
            expected, found = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
            original(torch.empty(num_elements, dtype=torch.float32), mean, std, low, high, generator=expected)
            advance(num_elements, torch.float32, mean, std, low, high, found, 64)
            if not torch.equal(expected.get_state(), found.get_state()):
                return False
    return True
