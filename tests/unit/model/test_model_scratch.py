"""Draws in bounded scratch end with the generator where the whole draw would have left it."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.errors import PipesvcError
from pipesvc.model import malloc, scratch, trunc_normal
from pipesvc.model.scratch import Draw, advance, block_elements, blocks

redraws = pytest.mark.skipif(
    trunc_normal.draws_once(torch.nn.init._no_grad_trunc_normal_),
    reason="this torch draws once, so nothing is rejected",
)


@given(st.integers(0, 5000), st.integers(1, 20).map(lambda groups: 16 * groups))
def test_blocks_add_up_and_the_tail_is_never_short(num_elements: int, block: int) -> None:
    sizes = blocks(num_elements, block)
    assert sum(sizes) == num_elements
    assert all(size == block for size in sizes[:-1])
    assert len(sizes) == 1 or 16 <= sizes[-1] < block + 16


@pytest.mark.parametrize("item_bytes", [1, 2, 4, 8, 16])
def test_the_longest_block_fits_the_scratch(item_bytes: int) -> None:
    block = block_elements(item_bytes)
    assert block % 16 == 0
    assert (block + 15) * item_bytes <= scratch.SCRATCH_BYTES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("extra", [0, 1, 15, 16, 17])
def test_normal_in_blocks_ends_in_the_same_state(dtype: torch.dtype, extra: int) -> None:
    num_elements = 2 * block_elements(dtype.itemsize) + extra
    expected = torch.Generator().manual_seed(3)
    torch.empty(num_elements, dtype=dtype).normal_(generator=expected)
    found, sizes = torch.Generator().manual_seed(3), []

    def run(size: int) -> None:
        sizes.append(size)
        torch.empty(size, dtype=dtype).normal_(generator=found)

    advance(
        Draw(
            name="normal_",
            key=("test", dtype),
            num_elements=num_elements,
            item_bytes=dtype.itemsize,
            generator=found,
            run=run,
        )
    )
    assert torch.equal(expected.get_state(), found.get_state())
    assert max(sizes) * dtype.itemsize <= scratch.SCRATCH_BYTES


def _draw(generator: torch.Generator, num_draws_of: dict[str, int], kind: str, num_elements: int) -> Draw:
    def run(size: int) -> None:
        num_draws_of[kind] += 1
        count = {"one_seed": 1, "squares": size * size % 1009}[kind]
        torch.empty(count).uniform_(generator=generator)

    return Draw(name=kind, key=(kind,), num_elements=num_elements, item_bytes=4, generator=generator, run=run)


def test_a_kernel_of_one_seed_per_call_draws_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_ways", {})
    expected, found = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    torch.empty(1).uniform_(generator=expected)
    advance(_draw(found, {"one_seed": 0}, "one_seed", 1_000_000))
    assert torch.equal(expected.get_state(), found.get_state())


def test_a_kernel_of_neither_kind_is_refused_and_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_ways", {})
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    with pytest.raises(PipesvcError, match="squares"):
        advance(_draw(generator, {"squares": 0}, "squares", 1_000_000))
    assert torch.equal(generator.get_state(), before)


@redraws
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.0, 0.02), (0.7, 1.3)])
@pytest.mark.parametrize("num_elements", [5, 16, 1000, 4099])
def test_rejection_in_blocks_ends_in_the_same_state(mean: float, std: float, num_elements: int) -> None:
    expected, found = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    torch.nn.init.trunc_normal_(torch.empty(num_elements), mean, std, generator=expected)
    trunc_normal.advance(num_elements, torch.float32, mean, std, -2.0, 2.0, found, 64)
    assert torch.equal(expected.get_state(), found.get_state())


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_glibc_takes_the_thresholds() -> None:
    if malloc._libc() is None:
        pytest.skip("another allocator")
    assert malloc._set(malloc._BUILDING_MMAP_BYTES, malloc._BUILDING_TRIM_BYTES)
    with malloc.while_building():
        pass
    assert malloc._set(malloc._TRAINING_MMAP_BYTES, malloc._TRAINING_TRIM_BYTES)
