"""Every model of the zoo through executors: whatever a forward does, its tensors get to their users."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pipesvc.core.flow import check_ends
from tests.unit.executor.batches import Batch
from tests.unit.executor.module_network import ModuleSetup, train_both
from tests.unit.model.replay_language import Checkpointed
from tests.unit.model.replay_zoo import ZOO, Case, Noisy, loss_of, rows, sequences

CASES = {**ZOO, "checkpointed": Case(Checkpointed, sequences), "noisy": Case(Noisy, rows)}
SIZES = ((2, 5), (3, 3), (2, 5), (5, 4))  # rows and positions of four micro-batches


def by_name(case: Case, size: tuple[int, int]) -> dict[str, Any]:
    inputs = case.inputs(*size)
    bound = inspect.signature(case.build().forward).bind(*inputs.args, **inputs.kwargs)
    return dict(bound.arguments)


def cuts_of(setup: ModuleSetup) -> list[Sequence[int]]:
    """Into two stages at each place, and evenly into three."""
    number = len(setup.flow.units)
    return [*((end, number) for end in range(1, number)), (number // 3, 2 * number // 3, number)]


@pytest.mark.parametrize("name", CASES)
def test_every_partition_has_the_bits_of_one_process(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(1)
    batch: Batch = ([by_name(case, size) for size in SIZES], None, [float(rows) for rows, _ in SIZES])
    sample = by_name(case, (4, 3))
    whole = ModuleSetup(build=case.build, sample=sample, parts=1, loss=loss_of)
    for ends in cuts_of(whole):
        check_ends(whole.flow, ends)  # every place can be cut
        setup = ModuleSetup(
            build=case.build, sample=sample, parts=len(ends), ends=ends, loss=loss_of, clip_norm=0.1, schedule="1F1B"
        )
        train_both(setup, [batch] * 2)
