"""Random draws for tensors that nobody here holds, in bounded memory.

A worker that skips the draws of other stages' parameters would give its own parameters other numbers than the plain
build does. So it makes the draws and throws them away. A scratch of the parameter's size would defeat the purpose (it
may be a 200 GB table), so they go through 256 KiB. torch's CPU kernels draw in groups of 16 with a rule of their own
for the tail: blocks of a multiple of 16, with a tail of less than 16 joined to the last block, leave the generator in
the identical state.

Which kernels keep that property depends on torch's version and on the CPU (MKL draws one seed per call, whatever the
size), so each kind of draw is tried on a small size first; one that behaves in neither way is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import torch
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.ghosts import user_line

SCRATCH_BYTES: Final = 256 << 10
_GROUP: Final = 16
_TRIALS: Final = ((64, 4 * 64 + 5), (4096, 3 * 4096 + 7), (64, 3 * 64), (1024, 5 * 1024 + 24))  # (block, elements)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One random operation on `num_elements` values. `run(k)` does it on k values in scratch."""

    name: str
    key: tuple[object, ...]  # equal keys behave alike
    num_elements: int
    item_bytes: int
    generator: torch.Generator
    run: Callable[[int], object]


class _Way(Enum):
    BLOCKS = "blocks"
    ONE_SEED = "one seed per call"
    NONE = "none"


_ways: dict[tuple[object, ...], _Way] = {}


def block_elements(item_bytes: int) -> int:
    """The size of a block; a tail of up to 15 more still fits the scratch."""
    return SCRATCH_BYTES // item_bytes // _GROUP * _GROUP - _GROUP


def blocks(num_elements: int, block: int) -> list[int]:
    """Sizes that add up to `num_elements`: multiples of 16 up to the last, and no last one below 16."""
    num_full, tail = divmod(num_elements, block)
    if num_full == 0:
        return [num_elements]
    sizes = [block] * num_full
    if tail >= _GROUP:
        sizes.append(tail)
    else:
        sizes[-1] += tail
    return sizes


def advance(draw: Draw) -> None:
    """Leaves the generator as if the operation had been done on the whole tensor."""
    block = block_elements(draw.item_bytes)
    if draw.num_elements <= block:
        draw.run(draw.num_elements)
        return
    way = _ways.get(draw.key)
    if way is None:
        way = _ways[draw.key] = _way_of(draw)
    if way is _Way.NONE:
        raise undrawable(draw.name)
    for size in blocks(draw.num_elements, block) if way is _Way.BLOCKS else [block]:
        draw.run(size)


def undrawable(name: str) -> PipesvcError:
    return PipesvcError(
        ErrorCode.BUILD_FAILED,
        f"{name} at {user_line()} draws for a layer of another stage in a way that cannot be repeated in parts",
        advice="Initialise with normal_, uniform_ or a function of torch.nn.init, or run the model as one stage.",
    )


def _way_of(draw: Draw) -> _Way:
    before = draw.generator.get_state()

    def after(sizes: Sequence[int]) -> Tensor:
        draw.generator.set_state(before)
        for size in sizes:
            draw.run(size)
        return draw.generator.get_state()

    most = block_elements(draw.item_bytes)
    trials = [(block, number) for block, number in _TRIALS if number <= most]
    try:
        if all(torch.equal(after([number]), after(blocks(number, block))) for block, number in trials):
            return _Way.BLOCKS
        if all(torch.equal(after([number]), after([block])) for block, number in trials):
            return _Way.ONE_SEED
        return _Way.NONE
    finally:
        draw.generator.set_state(before)
