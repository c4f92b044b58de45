"""What the schedules look like: one row per stage, one cell per unit of time, a backward twice as long as a forward."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipesvc.core.simulate import simulate
from tests.simulation.workloads import equal_stages, hops

EACH_ITS_OWN = ([0], [1], [2])


def _diagram(
    schedule: str, workers: Sequence[Sequence[int]], num_micro_batches: int, *, hop_s: float = 0, in_flight: int = 0
) -> str:
    stages = equal_stages(workers)
    step = simulate(schedule, stages, num_micro_batches=num_micro_batches, in_flight=in_flight, link=hops(hop_s))
    return step.diagram()


def _rows(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.mark.parametrize(
    ("schedule", "diagram"),
    [
        (
            "naive",
            """
            F0 .  .  .  .  .  .  B0 B0 F1 .  .  .  .  .  .  B1 B1
            .  F0 .  .  .  B0 B0 .  .  .  F1 .  .  .  B1 B1 .  .
            .  .  F0 B0 B0 .  .  .  .  .  .  F1 B1 B1 .  .  .  .
            """,
        ),
        (
            "GPipe",
            """
            F0 F1 .  .  .  .  .  .  B0 B0 B1 B1
            .  F0 F1 .  .  .  B0 B0 B1 B1 .  .
            .  .  F0 F1 B0 B0 B1 B1 .  .  .  .
            """,
        ),
    ],
)
def test_two_micro_batches(schedule: str, diagram: str) -> None:
    assert _diagram(schedule, EACH_ITS_OWN, 2) == _rows(diagram)


def test_gpipe_with_four_micro_batches() -> None:
    assert _diagram("GPipe", EACH_ITS_OWN, 4) == _rows(
        """
        F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 B1 B1 B2 B2 B3 B3
        .  F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3 .  .
        .  .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3 .  .  .  .
        """
    )


def test_1f1b_with_four_micro_batches() -> None:
    assert _diagram("1F1B", EACH_ITS_OWN, 4) == _rows(
        """
        F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
        .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .
        .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .
        """
    )


def test_p06_1f1b_with_one_micro_batch_on_four_stages() -> None:
    assert _diagram("1F1B", ([0], [1], [2], [3]), 1) == _rows(
        """
        F0 .  .  .  .  .  .  .  .  .  B0 B0
        .  F0 .  .  .  .  .  .  B0 B0 .  .
        .  .  F0 .  .  .  B0 B0 .  .  .  .
        .  .  .  F0 B0 B0 .  .  .  .  .  .
        """
    )


def test_a_hop_leaves_gaps_in_plain_1f1b() -> None:
    assert _diagram("1F1B", ([0], [1]), 5, hop_s=1) == _rows(
        """
        F0 F1 .  .  .  .  B0 B0 F2 B1 B1 F3 .  .  B2 B2 F4 B3 B3 .  .  .  B4 B4
        .  .  F0 B0 B0 F1 B1 B1 .  .  F2 B2 B2 F3 B3 B3 .  .  F4 B4 B4 .  .  .
        """
    )


def test_more_in_flight_closes_them() -> None:
    assert _diagram("1F1B", ([0], [1]), 5, hop_s=1, in_flight=4) == _rows(
        """
        F0 F1 F2 F3 .  .  B0 B0 F4 B1 B1 .  B2 B2 .  B3 B3 .  B4 B4
        .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 .  .  .
        """
    )


def test_two_stages_on_one_worker_take_turns() -> None:
    assert _diagram("1F1B", ([0, 1],), 2) == _rows(
        """
        F0 .  F1 .  .  B0 B0 .  .  .  B1 B1
        .  F0 .  B0 B0 .  .  F1 B1 B1 .  .
        """
    )
