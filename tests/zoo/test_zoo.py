"""Models of the zoo on several stages have the losses and weights of the plain loop, whatever the schedule."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from pipesvc.core import schedules
from pipesvc.errors import PipesvcError
from tests.unit.executor.network import train
from tests.unit.executor.owners import OWNERS
from tests.zoo.pairwise import Row, pairs_of, pairwise
from tests.zoo.table import HUB, OWN, ZOO
from tests.zoo.training import (
    MICRO_BATCHES,
    SCHEDULES,
    STAGES,
    batches_of,
    is_defined,
    plain_run,
    setup_of,
)

VALUES: list[Any] = [list(ZOO), SCHEDULES, STAGES, MICRO_BATCHES]


def is_possible(row: Row) -> bool:
    return is_defined(row[1], row[2])


ROWS = pairwise(VALUES, is_possible)


@pytest.mark.parametrize(("name", "schedule", "num_stages", "num_micro_batches"), ROWS)
def test_a09_losses_and_weights_are_those_of_the_plain_loop(
    name: str, schedule: str, num_stages: int, num_micro_batches: int
) -> None:
    cluster = train(setup_of(name, num_stages, schedule), batches_of(name, num_micro_batches))
    losses, plain = plain_run(name, num_micro_batches)
    found = cluster.state()
    assert found.keys() >= plain.keys()
    assert cluster.losses == losses
    assert [key for key in plain if not torch.equal(found[key], plain[key])] == []


def test_training_changes_losses() -> None:
    """So that equal losses say something."""
    for name in ZOO:
        losses, _ = plain_run(name, 2)
        assert len(set(losses)) == len(losses), name


def test_every_pair_that_can_occur_does() -> None:
    possible = {pair for row in product(*VALUES) if is_possible(row) for pair in pairs_of(row)}
    assert {pair for row in ROWS for pair in pairs_of(row)} == possible
    assert len(ROWS) < len(list(product(*VALUES))) / 6


def test_the_zoo_is_large_enough() -> None:
    assert len(ZOO) >= 25
    assert not OWN.keys() & HUB.keys()


def test_what_no_schedule_has_is_left_out_and_nothing_else() -> None:
    """Interleaved on two or three stages needs them on one worker, where the user may put them."""
    missing = {(schedule, num) for schedule, num in product(SCHEDULES, STAGES) if not is_defined(schedule, num)}
    assert missing == {("ZBV", 3)}
    for schedule, num_stages in missing:
        with pytest.raises(PipesvcError, match="3 stages cannot be two on each worker"):
            schedules.homes(schedule, num_stages=num_stages, num_workers=2)
    for (schedule, num_stages), owners in OWNERS.items():
        held = [[stage for stage in range(num_stages) if owners[stage] == each] for each in sorted(set(owners))]
        schedules.check_placement(schedule, held)
