"""How far a prediction may go ahead of who reads its outputs, and when it is given up because nobody does.

Outputs lie on the coordinator's disk until the client says that it has them. The run is only ever a few batches ahead
of that, so a reader that is slow costs nothing but time; a reader that is gone, which nobody could tell from a slow one
by its silence, shows as the end of its call.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesvc.coordinator.limits import READER_BOUND_S, WINDOW_OUTPUTS
from pipesvc.coordinator.output_events import DropOutputs, OutputsTaken, ReaderCame, ReaderWent
from pipesvc.coordinator.run_record import Phase, RunRecord
from pipesvc.coordinator.turn import Turn


@dataclass(kw_only=True, slots=True)
class Outputs:
    """Of one prediction. `taken` is the last batch that the client has."""

    taken: int = 0
    num_readers: int = 0
    # Since when nobody has been reading; the run begins with that.
    unread_since_s: float

    def may_compute(self, step: int) -> bool:
        return step <= self.taken + WINDOW_OUTPUTS


def is_abandoned(record: RunRecord, now_s: float) -> bool:
    """Whether the run could give outputs, and nobody reads them."""
    outputs = record.outputs
    if record.phase is not Phase.RUNNING or record.is_cancelled or outputs is None or outputs.num_readers:
        return False
    return now_s - max(record.phase_since_s, outputs.unread_since_s) >= READER_BOUND_S


def told(record: RunRecord, turn: Turn, event: ReaderCame | ReaderWent | OutputsTaken) -> None:
    """What the client does; of what it cannot have, it is no news that it has it."""
    outputs = record.outputs
    if outputs is None:
        return
    match event:
        case ReaderCame():
            outputs.num_readers += 1
        case ReaderWent():
            outputs.num_readers -= 1
            outputs.unread_since_s = turn.now_s
        case OutputsTaken():
            step = min(event.step, record.ledger.committed if record.ledger is not None else 0)
            for taken in range(outputs.taken + 1, step + 1):
                turn.commands.append(DropOutputs(run_id=record.run_id, step=taken))
            outputs.taken = max(outputs.taken, step)
