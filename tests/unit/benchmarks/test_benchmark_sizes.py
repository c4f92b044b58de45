"""All contenders get the same work."""

from __future__ import annotations

import pytest
import torch

from benchmarks import pipeline
from benchmarks.gpt import random_batch
from benchmarks.sizes import FULL
from benchmarks.torch_turn import ONE_STAGE_EACH, TWO_STAGES_EACH, TorchLoop, homes
from benchmarks.workloads import WORKLOADS, Workload

MIB = 1 << 20


def test_the_full_size_is_that_of_the_issue() -> None:
    assert (FULL.num_rows, FULL.num_tokens, FULL.model.num_layers) == (32, 4096, 10)
    gpt = WORKLOADS["gpt"]
    assert (gpt.num_tokens, gpt.num_layers, gpt.num_micro_batches) == (4096, 10, 8)


@pytest.mark.parametrize(("name", "num_mib"), [("thin-8", 8), ("thin-16", 16), ("asleep", 8)])
def test_the_boundary_is_as_large_as_its_name_says(name: str, num_mib: int) -> None:
    """A row of what the first layer gives, times the rows of a micro-batch."""
    what = WORKLOADS[name]
    ids, _ = random_batch(**(what.batch | {"num_rows": 1}))
    first = what.build(**what.arguments)[0](ids)
    assert first.numel() * first.element_size() * what.micro_batch_rows == num_mib * MIB


@pytest.mark.parametrize("what", WORKLOADS.values(), ids=list(WORKLOADS))
def test_a_workload_counts_its_layers_and_trains(what: Workload) -> None:
    model = what.build(**what.arguments)
    assert len(model) == what.num_layers
    ids, targets = random_batch(**(what.batch | {"num_rows": 1}))
    torch.autograd.backward(what.loss(model(ids), targets))
    assert all(value.grad is not None for value in model.parameters())


def test_the_equal_cut_leaves_no_stage_empty() -> None:
    gpt = WORKLOADS["gpt"]
    assert gpt.equal_cut(1) == ()
    assert gpt.equal_cut(2) == (5,)
    assert gpt.equal_cut(4) == (2, 5, 7)
    assert WORKLOADS["tiny"].equal_cut(4) == (1, 2, 3)


def test_every_schedule_of_torch_has_its_stages_where_torch_wants_them() -> None:
    assert [homes(name, 2) for name in ONE_STAGE_EACH] == [[0, 1]] * 2
    found = {name: homes(name, 2) for name in TWO_STAGES_EACH}
    assert {name for name, own in found.items() if own == [0, 1, 1, 0]} == {"ZBVZeroBubble", "DualPipeV"}
    assert all(own == [0, 1, 0, 1] for name, own in found.items() if name not in ("ZBVZeroBubble", "DualPipeV"))


def test_a_loop_reaches_its_process_whole() -> None:
    loop = TorchLoop(
        workload="gpt",
        schedule="1F1B",
        boundaries=(2, 5, 7),
        num_processes=2,
        index=1,
        store_path="store",
    )
    assert TorchLoop.from_json(loop.to_json()) == loop


def test_every_workload_that_is_measured_has_rounds_and_aims() -> None:
    assert pipeline.ROUNDS.keys() == pipeline.AIMS.keys() == WORKLOADS.keys() - {"empty", "wide"}
