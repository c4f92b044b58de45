"""The simulator as one would explain it: at every moment, everything that has ended or come counts; then all choose.

Slow, and short enough to be believed: it asks `choose`, `needs` and `results` about single actions, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipesvc.core.actions import Action, ActionKind, Result, ResultKind, needs, results
from pipesvc.core.choice import choose
from pipesvc.core.stage_costs import StageCost
from pipesvc.core.step_graph import LinkOf
from pipesvc.core.step_lists import StepLists


@dataclass(kw_only=True)
class Reference:
    lists: StepLists
    stages: Sequence[StageCost]
    num_micro_batches: int
    decides: bool
    link: LinkOf
    spans: dict[Action, tuple[float, float]] = field(default_factory=dict)
    live: dict[int, int] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)
    link_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    stuck: list[Action] = field(default_factory=list)
    _free_s: dict[str, float] = field(default_factory=dict)
    _link_free_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _arrival_s: dict[tuple[Result, Action], float] = field(default_factory=dict)

    def run(self) -> Reference:
        pending = {worker: list(actions) for worker, actions in self.lists.per_worker.items()}
        now = 0.0
        while True:
            for worker, actions in pending.items():
                if self._free_s.get(worker, 0.0) <= now:
                    self._choose(worker, actions, now)
            later = [moment for moment in [*self._free_s.values(), *self._arrival_s.values()] if moment > now]
            if not later:
                break
            now = min(later)
        self.stuck = [actions[0] for actions in pending.values() if actions]
        return self

    def _choose(self, worker: str, actions: list[Action], now: float) -> None:
        def is_ready(action: Action) -> bool:
            return all(self._arrival_s.get((need, action), float("inf")) <= now for need in self._needs(action))

        index = choose(actions, is_ready, self.live, self.lists.bounds, self.lists.look_aheads[worker])
        if index is not None:
            self._start(worker, actions.pop(index), now)

    def _start(self, worker: str, action: Action, now: float) -> None:
        change = {ActionKind.FORWARD: 1, ActionKind.BACKWARD: -1, ActionKind.WEIGHT_BACKWARD: -1}.get(action.kind, 0)
        live = self.live[action.stage] = self.live.get(action.stage, 0) + change
        self.peaks[action.stage] = max(self.peaks.get(action.stage, 0), live)
        end_s = self._free_s[worker] = now + self.stages[action.stage].seconds(action.kind)
        self.spans[action] = now, end_s
        for reader in (each for actions in self.lists.per_worker.values() for each in actions):
            for result in set(results(action)) & set(self._needs(reader)):
                self._arrival_s[result, reader] = self._sent(result, worker, self.stages[reader.stage].worker, end_s)

    def _sent(self, result: Result, sender: str, receiver: str, end_s: float) -> float:
        if sender == receiver:
            return end_s
        num_bytes = 0
        if result.kind is ResultKind.OUTPUT:
            num_bytes = self.stages[result.stage].output_bytes
        elif result.kind is ResultKind.INPUT_GRADIENT:
            num_bytes = self.stages[result.stage - 1].output_gradient_bytes
        cost, way = self.link(sender, receiver), (sender, receiver)
        self.link_bytes[way] = self.link_bytes.get(way, 0) + num_bytes
        self._link_free_s[way] = max(end_s, self._link_free_s.get(way, 0.0)) + num_bytes / cost.bytes_per_s
        return self._link_free_s[way] + cost.latency_s

    def _needs(self, action: Action) -> tuple[Result, ...]:
        return needs(
            action, num_stages=len(self.stages), num_micro_batches=self.num_micro_batches, decides=self.decides
        )
