"""All contenders get the same sizes and the same cut."""

from __future__ import annotations

from benchmarks.sizes import FULL, TINY
from benchmarks.torch_turn import TorchLoop


def test_the_full_size_is_that_of_the_issue() -> None:
    assert (FULL.num_rows, FULL.num_tokens, FULL.model.num_layers) == (32, 4096, 10)


def test_the_cut_leaves_no_stage_empty() -> None:
    assert FULL.boundaries(1) == ()
    assert FULL.boundaries(2) == (5,)
    assert FULL.boundaries(3) == (3, 6)
    assert TINY.boundaries(4) == (1, 2, 3)


def test_a_loop_reaches_its_process_whole() -> None:
    loop = TorchLoop(
        sizes=FULL,
        schedule="1F1B",
        keeps_outputs=False,
        num_steps=8,
        num_processes=2,
        index=1,
        store_path="store",
    )
    assert TorchLoop.from_json(loop.to_json()) == loop
