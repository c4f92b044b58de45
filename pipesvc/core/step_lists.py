"""What the workers of a plan do in one step, as one value: their lists, and the limits within which they choose.

Simulator, choice of schedule and dry-run need all three together, and lists need not come from a generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipesvc.core import schedules
from pipesvc.core.actions import Action
from pipesvc.core.live import live_peaks


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLists:
    """The priority list of each worker, for `choice.choose`."""

    per_worker: Mapping[str, Sequence[Action]]
    bounds: Mapping[int, int]  # stage -> micro-batches in flight at most; without an entry: not bounded
    look_aheads: Mapping[str, int]  # worker -> entries that it looks at

    def in_order(self) -> StepLists:
        """The same lists run strictly in order, as other runtimes do: the head runs or the worker waits."""
        return StepLists(per_worker=self.per_worker, bounds={}, look_aheads=dict.fromkeys(self.per_worker, 1))


def step_lists(
    schedule: str,
    *,
    homes: Sequence[str],
    num_micro_batches: int,
    in_flight: int = 0,
    decides: bool = False,
    text: str = "",
) -> StepLists:
    """What executors do under this schedule; `homes` has each stage's worker, `text` is a schedule file's."""
    num_stages = len(homes)
    held: dict[str, list[int]] = {}
    for stage, worker in enumerate(homes):
        held.setdefault(worker, []).append(stage)
    lists = {
        worker: schedules.worker_actions(
            schedule,
            stages=stages,
            num_stages=num_stages,
            num_micro_batches=num_micro_batches,
            in_flight=in_flight,
            decides=decides,
            text=text,
        )
        for worker, stages in held.items()
    }
    return StepLists(
        per_worker=lists,
        bounds={stage: peak for actions in lists.values() for stage, peak in live_peaks(actions).items()},
        look_aheads={worker: schedules.look_ahead(schedule, len(stages)) for worker, stages in held.items()},
    )
