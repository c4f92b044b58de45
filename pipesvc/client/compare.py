"""What was predicted beside what a run did: per stage, per link, and for the step.

A prediction that nobody checks is believed until it misleads. Both sides are brought into one form first: the
simulated spans are one step, the trace is many, and the same medians are taken of both. Times of one stage are
compared on that stage's own clock, so clocks of different hosts need not agree. Pure.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, Literal

from pipesvc.client.gantt import KIND_NAMES
from pipesvc.client.job import Job, ScheduleFile
from pipesvc.core.actions import EVALUATING, Action, ActionKind
from pipesvc.core.costs import Costs
from pipesvc.core.plan import Plan
from pipesvc.core.plan_report import PlanReport, StageReport
from pipesvc.core.schedules import FILE
from pipesvc.core.split import micro_batch_rows
from pipesvc.core.timeline import Simulation, Span
from pipesvc.errors import ErrorCode, PipesvcError

# The first steps of a run also make buffers and warm caches.
NUM_WARM_UP: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One number, predicted and measured; None where there is none."""

    where: str
    what: str
    predicted: float | None
    measured: float | None
    unit: Literal["s", "bytes", "part"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What was seen of steps, simulated or real."""

    step_s: float
    action_s: Mapping[tuple[int, ActionKind], float]  # median, per stage and kind
    idle: Mapping[int, float]  # the part of the step in which the stage does nothing


def compare(
    report: PlanReport,
    simulation: Simulation,
    *,
    trace: Sequence[Mapping[str, Any]],
    links: Sequence[Mapping[str, Any]],
    num_steps: int,
) -> list[Line]:
    """`trace`, `links` and the committed `num_steps` are those of a run with the plan of `report`.

    Raises INVALID_PLAN if the trace has no whole step.
    """
    predicted = _observed([simulation.spans], [simulation.step_s])
    measured = observed_in(trace)
    lines = [
        Line(where="step", what="time", predicted=predicted.step_s, measured=measured.step_s, unit="s"),
    ]
    for stage in report.stages:
        lines += _stage_lines(stage, predicted, measured)
    return [*lines, *_link_lines(report, links, num_steps)]


def check_same_rows(costs: Costs, plan: Plan, num_rows: int) -> None:
    """Refuses costs of micro-batches of another size than those of a run whose first step had so many rows."""
    rows = micro_batch_rows(num_rows, plan.micro_batches)[0]
    if costs.micro_batch_rows not in (0, rows):
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"the run has {rows} rows in its first micro-batch ({num_rows} in {plan.micro_batches}), and the job would "
            f"have {costs.micro_batch_rows}",
            advice="Give the job the run's batch_size and data.",
        )


def differences(job: Job, plan: Plan) -> list[str]:
    """What a job says otherwise than this plan, each with both values; what it leaves open differs in nothing."""
    strategy = job.strategy
    own = strategy.schedule
    schedule, text = (FILE, own.text) if isinstance(own, ScheduleFile) else (own, "")
    names = [stage.layer_names[0] for stage in plan.stages[1:]]
    is_by_index = any(isinstance(each, int) for each in strategy.boundaries)
    first_layers = [stage.first_layer for stage in plan.stages[1:]] if is_by_index else names
    num_micro_batches = strategy.micro_batches * job.accumulate
    said: list[tuple[str, object, object]] = [("micro_batches", num_micro_batches, plan.micro_batches)]
    if not strategy.has_open_schedule:
        said.append(("schedule", schedule.lower(), plan.schedule.lower()))
        said.append(("in_flight", strategy.in_flight or 0, plan.in_flight))
    if not isinstance(strategy.boundaries, str) and strategy.boundaries:
        said.append(("boundaries", list(strategy.boundaries), first_layers))
    elif strategy.num_stages or not strategy.pipeline:
        said.append(("num_stages", strategy.num_stages or 1, plan.num_stages))
    places = {stage.label: f"{stage.worker}/{stage.device}" for stage in plan.stages}
    for label, wish in strategy.placement.items():
        place = places.get(label, "nothing")
        said.append((label, wish, place if "/" in wish else place.partition("/")[0]))
    found = [f"{name} is {asked} and was {ran}" for name, asked, ran in said if asked != ran]
    return found if text == plan.schedule_text else [*found, "the text of the schedule file is another"]


def comparison_json(lines: Sequence[Line]) -> str:
    return json.dumps([asdict(line) for line in lines], indent=2)


def observed_in(trace: Sequence[Mapping[str, Any]]) -> Observed:
    """The medians of a run's trace, without its first steps if there are enough others.

    A step lasts from stage 0's last action of the step before to that of its own.
    """
    steps: dict[int, list[Span]] = defaultdict(list)
    for event in trace:
        if (span := _span_of(event)) is not None:
            steps[event["step"]].append(span)
    if not steps:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            "the run's trace has no step",
            advice="Compare with a run that has trained some steps.",
        )
    numbers = sorted(steps)
    ends = {number: _end_s(steps[number]) for number in numbers}
    periods = {after: ends[after] - ends[before] for before, after in pairwise(numbers) if after == before + 1}
    kept = [number for number in periods if number > NUM_WARM_UP] or list(periods)
    if not kept:  # one step alone
        kept = numbers[-1:]
        periods = {kept[0]: ends[kept[0]] - min(span.start_s for span in steps[kept[0]] if span.action.stage == 0)}
    return _observed([steps[number] for number in kept], [periods[number] for number in kept])


def _span_of(event: Mapping[str, Any]) -> Span | None:
    """None for what a feeder does, and for evaluations."""
    if event["stage"] < 0 or event["action"] == EVALUATING:
        return None
    kind = ActionKind(event["action"])
    is_per_step = kind in (ActionKind.NORM, ActionKind.DECIDE, ActionKind.UPDATE)
    action = Action(event["stage"], kind, None if is_per_step else event["micro_batch"])
    return Span(action, event["start_unix_ns"] / 1e9, event["end_unix_ns"] / 1e9)


def _end_s(spans: Iterable[Span]) -> float:
    return max(span.end_s for span in spans if span.action.stage == 0)


def _observed(steps: Sequence[Sequence[Span]], step_s: Sequence[float]) -> Observed:
    lasted: dict[tuple[int, ActionKind], list[float]] = defaultdict(list)
    idle: dict[int, list[float]] = defaultdict(list)
    for spans, period_s in zip(steps, step_s, strict=True):
        busy_s: dict[int, float] = defaultdict(float)
        for span in spans:
            lasted[span.action.stage, span.action.kind].append(span.end_s - span.start_s)
            busy_s[span.action.stage] += span.end_s - span.start_s
        for stage, seconds in busy_s.items():
            idle[stage].append(1 - seconds / period_s if period_s else 0.0)
    return Observed(
        step_s=median(step_s),
        action_s={key: median(values) for key, values in lasted.items()},
        idle={stage: median(values) for stage, values in idle.items()},
    )


def _stage_lines(stage: StageReport, predicted: Observed, measured: Observed) -> Iterator[Line]:
    where = f"stage {stage.index} on {stage.worker}/{stage.device}"
    for kind, name in KIND_NAMES.items():
        times = [seen.action_s.get((stage.index, kind)) for seen in (predicted, measured)]
        if times != [None, None]:
            yield Line(where=where, what=name, predicted=times[0], measured=times[1], unit="s")
    yield Line(
        where=where,
        what="idle",
        predicted=predicted.idle.get(stage.index),
        measured=measured.idle.get(stage.index),
        unit="part",
    )


def _link_lines(report: PlanReport, links: Sequence[Mapping[str, Any]], num_steps: int) -> Iterator[Line]:
    """Bytes of tensors in a step, as they travel. What no plan speaks of, such as labels, has no prediction."""
    predicted = {link.link: link.num_bytes * report.micro_batches for link in report.links if link.num_bytes}
    measured = {link["link"]: link["coded_bytes"] / num_steps for link in links} if num_steps else {}
    for link in dict.fromkeys([*predicted, *sorted(measured)]):
        yield Line(
            where=f"link {link}",
            what="bytes",
            predicted=predicted.get(link),
            measured=measured.get(link),
            unit="bytes",
        )
