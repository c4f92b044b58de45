"""What a progress bar may show as the total before the data has ended."""

from __future__ import annotations

import pytest

from pipesvc.coordinator.step_ledger import StepLedger
from pipesvc.rpc.v1 import local_pb2, types_pb2


def ledger_after(*epochs: int) -> StepLedger:
    ledger = StepLedger(1)
    for step, epoch in enumerate(epochs, 1):
        ledger.announce(local_pb2.BatchAnnounced(step=step, epoch=epoch, shares=[1.0], rows=[1]))
    return ledger


@pytest.mark.parametrize(
    ("epochs", "num_epochs", "max_steps", "expected"),
    [
        ((0, 0), 1, 0, 0),  # one epoch of unknown length
        ((0, 0), 0, 500, 500),  # as many passes as 500 steps need
        ((0, 0, 1), 3, 0, 6),
        ((0, 0, 1), 3, 4, 4),
        ((0, 0, 1), 0, 500, 500),
    ],
)
def test_expected_steps(epochs: tuple[int, ...], num_epochs: int, max_steps: int, expected: int) -> None:
    assert ledger_after(*epochs).expected_steps(num_epochs, max_steps) == expected


def test_the_end_of_the_data_is_the_truth() -> None:
    ledger = ledger_after(0, 0, 1)
    ledger.end(3)
    assert ledger.expected_steps(0, 500) == 3


@pytest.mark.parametrize(
    ("start", "num_epochs", "expected"),
    [((7, 1, 2), 3, 15), ((10, 1, 5), 4, 20), ((3, 0, 3), 3, 0)],
)
def test_a_ledger_that_goes_on_counts_from_the_beginning(
    start: tuple[int, int, int], num_epochs: int, expected: int
) -> None:
    step, epoch, steps_in_epoch = start
    ledger = StepLedger(2, types_pb2.Position(step=step, epoch=epoch, steps_in_epoch=steps_in_epoch))
    assert (ledger.issued, ledger.committed, ledger.applied, ledger.epoch) == (step, step, [step, step], epoch)
    assert ledger.expected_steps(num_epochs, 0) == expected
    ledger.announce(local_pb2.BatchAnnounced(step=step + 1, epoch=epoch, shares=[1.0], rows=[1]))
    issued = ledger.issue(0.0)
    assert issued is not None
    assert issued.step == step + 1
    assert not ledger.is_drained
