"""How long a step takes and what each stage does meanwhile, before anything runs.

The step is played with the rule that executors use (`choice.choose`), given the time of a forward and a backward of
each stage and the time of a hop between workers. So which schedule, and how many micro-batches in flight, can be told
from measured times rather than guessed. Times are in any one unit, the same for all.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pipesvc.core.actions import Action, ActionKind, awaited
from pipesvc.core.choice import LOOK_AHEAD, choose
from pipesvc.core.schedules import in_flight_bound, look_ahead, worker_actions
from pipesvc.errors import ErrorCode, PipesvcError


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """What actions and messages cost. Norms, decision and update are free."""

    forward_s: Sequence[float]  # per stage
    backward_s: Sequence[float]  # per stage
    hop_s: float = 0.0  # between different workers; none within one

    def of(self, action: Action) -> float:
        match action.kind:
            case ActionKind.FORWARD:
                return self.forward_s[action.stage]
            case ActionKind.BACKWARD:
                return self.backward_s[action.stage]
            case _:
                return 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """One action with its start and end."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One simulated step."""

    step_s: float
    busy_s: tuple[float, ...]  # per stage
    bubble: float  # the part of the workers' time in which they do nothing
    peak_in_flight: tuple[int, ...]  # per stage
    spans: tuple[Span, ...]  # in order of start

    def diagram(self, unit_s: float = 1.0) -> str:
        """One row per stage, one cell per unit of time: `F0 F1 .. B0 B0`, dots where the stage is idle."""
        num_cells = round(self.step_s / unit_s)
        rows = [["."] * num_cells for _ in self.busy_s]
        for span in self.spans:
            for cell in range(round(span.start_s / unit_s), round(span.end_s / unit_s)):
                rows[span.action.stage][cell] = f"{span.action.kind}{span.action.micro_batch}"
        width = max((len(cell) for row in rows for cell in row), default=1)
        return "\n".join(" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)


def simulate(
    schedule: str,
    *,
    stages_per_worker: Sequence[Sequence[int]],
    num_micro_batches: int,
    times: Times,
    in_flight: int = 0,
    clips: bool = False,
) -> Simulation:
    """Plays one step of this schedule; worker w holds the stages `stages_per_worker[w]`."""
    num_stages = sum(map(len, stages_per_worker))
    lists = [
        worker_actions(
            schedule,
            stages=stages,
            num_stages=num_stages,
            num_micro_batches=num_micro_batches,
            in_flight=in_flight,
            clips=clips,
        )
        for stages in stages_per_worker
    ]
    bounds = {
        stage: in_flight_bound(schedule, stage, num_stages, num_micro_batches, in_flight) for stage in range(num_stages)
    }
    return play(
        lists,
        num_micro_batches=num_micro_batches,
        times=times,
        bounds=bounds,
        clips=clips,
        look_aheads=[look_ahead(schedule, len(stages)) for stages in stages_per_worker],
    )


def play(
    lists: Sequence[Sequence[Action]],
    *,
    num_micro_batches: int,
    times: Times,
    bounds: Mapping[int, int],
    clips: bool = False,
    look_aheads: Sequence[int] = (),
) -> Simulation:
    """Plays the lists of the workers, whatever made them; `look_aheads` is per worker."""
    run = _Playing(
        pending=[list(actions) for actions in lists],
        home={action.stage: worker for worker, actions in enumerate(lists) for action in actions},
        num_micro_batches=num_micro_batches,
        times=times,
        bounds=bounds,
        clips=clips,
        look_aheads=look_aheads or [LOOK_AHEAD] * len(lists),
    )
    run.to_the_end()
    num_stages = len(run.home)
    step_s = max((span.end_s for span in run.spans), default=0.0)
    busy_s = [0.0] * num_stages
    for span in run.spans:
        busy_s[span.action.stage] += span.end_s - span.start_s
    return Simulation(
        step_s=step_s,
        busy_s=tuple(busy_s),
        bubble=1 - sum(busy_s) / (len(lists) * step_s) if step_s else 0.0,
        peak_in_flight=tuple(run.peaks.get(stage, 0) for stage in range(num_stages)),
        spans=tuple(run.spans),
    )


@dataclass(slots=True, kw_only=True)
class _Playing:
    """The moving parts of one simulated step."""

    pending: list[list[Action]]
    home: Mapping[int, int]  # stage -> worker
    num_micro_batches: int
    times: Times
    bounds: Mapping[int, int]
    clips: bool
    look_aheads: Sequence[int]
    ended_s: dict[Action, float] = field(default_factory=dict)
    free_s: dict[int, float] = field(default_factory=dict)  # worker -> end of what it does now
    live: dict[int, int] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def to_the_end(self) -> None:
        """Looks at all workers whenever an action has ended or its result has arrived."""
        moments = [0.0]
        while moments:
            now = heapq.heappop(moments)
            while moments and moments[0] == now:
                heapq.heappop(moments)
            has_moved = True
            while has_moved:  # free actions end at once and may let others go at the same moment
                has_moved = False
                for worker in range(len(self.pending)):
                    span = self._start_one(worker, now)
                    if span is not None:
                        has_moved = True
                        heapq.heappush(moments, span.end_s)
                        heapq.heappush(moments, span.end_s + self.times.hop_s)
        stuck = [actions[0] for actions in self.pending if actions]
        if stuck:
            raise PipesvcError(ErrorCode.INVALID_PLAN, f"the lists lock each other up at {', '.join(map(str, stuck))}")

    def _start_one(self, worker: int, now: float) -> Span | None:
        if self.free_s.get(worker, 0.0) > now:
            return None
        pending = self.pending[worker]
        is_ready = partial(self._is_ready, now=now)
        index = choose(pending, is_ready, self.live, self.bounds, self.look_aheads[worker])
        if index is None:
            return None
        action = pending.pop(index)
        stage = action.stage
        if action.kind is ActionKind.FORWARD:
            self.live[stage] = self.live.get(stage, 0) + 1
            self.peaks[stage] = max(self.peaks.get(stage, 0), self.live[stage])
        elif action.kind is ActionKind.BACKWARD:
            self.live[stage] -= 1
        end_s = now + self.times.of(action)
        self.ended_s[action] = self.free_s[worker] = end_s
        span = Span(action, now, end_s)
        self.spans.append(span)
        return span

    def _is_ready(self, action: Action, now: float) -> bool:
        needed = awaited(action, num_stages=len(self.home), num_micro_batches=self.num_micro_batches, clips=self.clips)
        return all(self._arrival_s(other, action) <= now for other in needed)

    def _arrival_s(self, result: Action, receiver: Action) -> float:
        is_local = self.home[result.stage] == self.home[receiver.stage]
        return self.ended_s.get(result, float("inf")) + (0.0 if is_local else self.times.hop_s)
