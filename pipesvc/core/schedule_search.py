"""`schedule="auto"`: which schedule, and how many micro-batches in flight, for a given partition.

No formula ranks schedules on unlike hosts: a hop of the length of a forward makes plain 1F1B slower than GPipe, and one
more micro-batch in flight may undo that or not fit. A simulated step takes milliseconds, so all that could win are
simulated, and those that fit are compared. The answer comes with its runner-up and says why.

Among steps of the same length within `WORTH` the one that holds least wins: measured times wander by more.

Legend: p stages, m micro-batches. Units are seconds and bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count, takewhile
from typing import Final

from pipesvc.core.memory import Memory, against_text, bytes_text, check_memory, device_memory, too_small
from pipesvc.core.schedules import check_placement, splits_backward
from pipesvc.core.simulate import free_link, play
from pipesvc.core.stage_costs import StageCost, gradients_on_links, outputs_on_links
from pipesvc.core.step_graph import LinkOf
from pipesvc.core.step_lists import step_lists
from pipesvc.core.timeline import Simulation
from pipesvc.errors import PipesvcError

# A part of the step time that is worth any amount of memory that is there, and none that is not.
WORTH: Final = 0.005

# Schedules that are tried beside 1F1B and GPipe, where they can win.
SHARED: Final = ("Interleaved1F1B", "ZBV")  # for several stages on each worker
_OTHERS: Final = ("ZBH1", *SHARED)

# Hops that add less than this part of the step are called hidden.
_HIDDEN: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A schedule for a partition, with what it would cost."""

    schedule: str
    in_flight: int  # as in a strategy; 0: the schedule's own number
    step: Simulation
    memory: Mapping[str, Memory]  # of each place
    too_small: Mapping[str, int]  # the places that it does not fit, with their limits

    @property
    def fits(self) -> bool:
        return not self.too_small

    @property
    def held_bytes(self) -> int:
        return sum(memory.total_bytes for memory in self.memory.values())

    def __str__(self) -> str:
        return f"{self.schedule} with {self.in_flight} in flight" if self.in_flight else self.schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleChoice:
    """The best candidate that fits, the best of the others, and a line about each."""

    best: Candidate
    runner_up: Candidate
    reason: tuple[str, str]


def evaluate(
    schedule: str,
    stages: Sequence[StageCost],
    *,
    num_micro_batches: int,
    in_flight: int = 0,
    decides: bool = False,
    text: str = "",
    link: LinkOf = free_link,
) -> Candidate:
    """Simulates a step of this schedule (`text`: a schedule file's) and sums its memory up, whether it fits or not."""
    lists = step_lists(
        schedule,
        homes=[stage.worker for stage in stages],
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
        decides=decides,
        text=text,
    )
    memory = device_memory(stages, lists.bounds)
    return Candidate(
        schedule=schedule,
        in_flight=in_flight,
        step=play(lists, stages, num_micro_batches=num_micro_batches, decides=decides, link=link),
        memory=memory,
        too_small=too_small(stages, memory),
    )


def choose_schedule(
    stages: Sequence[StageCost],
    *,
    num_micro_batches: int,
    decides: bool = False,
    may_split: bool = True,
    link: LinkOf = free_link,
) -> ScheduleChoice:
    """The fastest schedule that fits into the memory of every device; INVALID_PLAN, with the sums, where none does.

    `naive` is left out: 1F1B with one in flight holds as little and is never slower. Split backwards are tried where
    something of them can wait, and schedules for several stages on a worker where the stages lie as they want them.
    """
    try_out = partial(evaluate, stages=stages, num_micro_batches=num_micro_batches, decides=decides, link=link)
    rivals = [_best_1f1b(stages, num_micro_batches, try_out), try_out("1F1B"), try_out("GPipe")]
    rivals += [try_out(schedule) for schedule in _OTHERS if _may_win(schedule, stages, may_split)]
    best = best_of(rivals)
    runner_up = min((each for each in rivals if str(each) != str(best)), key=lambda each: each.step.step_s)
    return ScheduleChoice(
        best=best,
        runner_up=runner_up,
        reason=(
            praise(best, stages, num_micro_batches=num_micro_batches, decides=decides, link=link),
            blame(runner_up, best),
        ),
    )


def best_of(rivals: Sequence[Candidate]) -> Candidate:
    """The fastest of those that fit; among equally fast ones that which holds least."""
    fitting = [each for each in rivals if each.fits]
    longest_s = min(each.step.step_s for each in fitting) * (1 + WORTH)
    return min((each for each in fitting if each.step.step_s <= longest_s), key=lambda each: each.held_bytes)


def _may_win(schedule: str, stages: Sequence[StageCost], may_split: bool) -> bool:
    if splits_backward(schedule) and not (may_split and any(stage.weight_backward_s for stage in stages)):
        return False
    held: dict[str, list[int]] = {}
    for index, stage in enumerate(stages):
        held.setdefault(stage.worker, []).append(index)
    try:
        check_placement(schedule, list(held.values()))
    except PipesvcError:
        return False
    # With one stage on each worker, interleaved is 1F1B with more in flight.
    return len(held) > 1 and (schedule not in SHARED or len(stages) > len(held))


def _best_1f1b(stages: Sequence[StageCost], num_micro_batches: int, try_out: Callable[..., Candidate]) -> Candidate:
    """With the fewest in flight that are as fast as any number that fits.

    More in flight hides hops, until nothing is left to hide: the first few numbers above p matter, and the rest are
    tried in strides that double.
    """
    num_stages, most = len(stages), _most_in_flight(stages, num_micro_batches)
    if most <= num_stages:
        return try_out("1F1B", in_flight=0 if most == num_stages else most)

    @cache
    def with_more(more: int) -> Candidate:
        return try_out("1F1B", in_flight=num_stages + more if more else 0)

    strides = [0, *takewhile(lambda more: more < most - num_stages, (2**power for power in count())), most - num_stages]
    enough_s = min(with_more(more).step.step_s for more in strides) * (1 + WORTH)
    first = next(index for index, more in enumerate(strides) if with_more(more).step.step_s <= enough_s)
    untried = range(strides[first - 1] + 1, strides[first]) if first else range(0)
    place = bisect_left(untried, True, key=lambda more: with_more(more).step.step_s <= enough_s)
    return with_more(untried[place] if place < len(untried) else strides[first])


def _most_in_flight(stages: Sequence[StageCost], num_micro_batches: int) -> int:
    """The largest cap of 1F1B that fits everywhere, at most what still makes a difference; refuses where 1 does not."""

    def memory(cap: int) -> Mapping[str, Memory]:
        homes = [stage.worker for stage in stages]
        lists = step_lists("1F1B", homes=homes, num_micro_batches=num_micro_batches, in_flight=cap)
        return device_memory(stages, lists.bounds)

    check_memory(stages, memory(1))
    caps = range(1, max(len(stages), num_micro_batches) + 1)
    return bisect_left(caps, True, key=lambda cap: bool(too_small(stages, memory(cap))))


def _hops_s(stages: Sequence[StageCost], link: LinkOf) -> list[float]:
    """What each way between stages on two workers takes, of outputs and of gradients."""
    ways = (*outputs_on_links(stages).items(), *gradients_on_links(stages).items())
    return [
        link(stages[sender].worker, stages[receiver].worker).hop_s(num_bytes)
        for (sender, receiver), num_bytes in ways
        if stages[sender].worker != stages[receiver].worker
    ]


def praise(
    best: Candidate,
    stages: Sequence[StageCost],
    *,
    num_micro_batches: int,
    decides: bool = False,
    link: LinkOf = free_link,
) -> str:
    """How long a step takes, and what hops add to it. One micro-batch crosses alone at the start, one at the end."""
    hops_s, step_s = _hops_s(stages, link), best.step.step_s
    without_hops = evaluate(
        best.schedule, stages, num_micro_batches=num_micro_batches, in_flight=best.in_flight, decides=decides
    )
    added_s = step_s - without_hops.step.step_s
    text = f"{best}: {seconds_text(step_s)} a step, bubble {best.step.bubble * 100:.0f} %"
    if not any(hops_s):
        return f"{text}."
    hops = f"hops of {seconds_text(max(hops_s))}"
    if added_s <= _HIDDEN * step_s:
        return f"{text}; {hops} are hidden."
    if added_s <= sum(hops_s) + _HIDDEN * step_s:
        return f"{text}; {hops} are hidden but at start and end, where they add {seconds_text(added_s)}."
    return f"{text}; {hops} add {seconds_text(added_s)}."


def blame(other: Candidate, best: Candidate) -> str:
    """Why it is not the other."""
    step_s, best_s = other.step.step_s, best.step.step_s
    is_equal = abs(step_s - best_s) <= WORTH * best_s
    takes = f"{other} would take {'as long' if is_equal else seconds_text(step_s)}"
    if not other.fits:
        place, limit_bytes = next(iter(other.too_small.items()))
        needed = against_text(other.memory[place].total_bytes, limit_bytes)
        return f"{takes} {'and' if step_s > best_s and not is_equal else 'but'} needs {needed} on {place}."
    if not is_equal:
        return f"{takes}, {(step_s / best_s - 1) * 100:.0f} % more."
    more_bytes = other.held_bytes - best.held_bytes
    return f"{takes} and holds {f'{bytes_text(more_bytes)} more' if more_bytes else 'as much'}."


def seconds_text(seconds: float) -> str:
    """Three digits, in s, ms or us."""
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
