"""Predicted beside measured, from spans and a trace written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipesvc.client.compare import Line, check_same_rows, compare, differences, observed_in
from pipesvc.client.job import ScheduleFile
from pipesvc.client.plan_view import comparison_text
from pipesvc.client.planning import plan_job
from pipesvc.core.actions import ActionKind
from pipesvc.core.timeline import Span
from pipesvc.errors import PipesvcError
from tests.unit.client.planning_costs import MIB, costs, crew, device, job

PLANNED = plan_job(job(boundaries=(3,)), costs(device("a"), device("b")), crew("a", "b"))


def trace_of(
    spans: Sequence[Span], num_steps: int, *, slowness: float = 1.0, ahead_s: Mapping[int, float] | None = None
) -> list[dict[str, Any]]:
    """The steps one after the other; the clock of a stage's host is `ahead_s` of ours."""
    step_s = max(span.end_s for span in spans)
    events: list[dict[str, Any]] = []
    for step in range(1, num_steps + 1):
        events.append(_event(step, -1, "read", 0, 0.0, 1e9))
        for span in spans:
            begin_s = (step - 1) * step_s + (ahead_s or {}).get(span.action.stage, 0.0)
            events.append(
                _event(
                    step,
                    span.action.stage,
                    span.action.kind.value,
                    span.action.micro_batch or 0,
                    slowness * (begin_s + span.start_s),
                    slowness * (begin_s + span.end_s),
                )
            )
    return events


def _event(step: int, stage: int, action: str, micro_batch: int, start_s: float, end_s: float) -> dict[str, Any]:
    return {
        "step": step,
        "stage": stage,
        "action": action,
        "micro_batch": micro_batch,
        "start_unix_ns": round(start_s * 1e9),
        "end_unix_ns": round(end_s * 1e9),
    }


def _compared(
    events: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]] = ()
) -> dict[tuple[str, str], Line]:
    lines = compare(PLANNED.report, PLANNED.evaluated.step, trace=events, links=links, num_steps=5)
    return {(line.where, line.what): line for line in lines}


def test_a_run_that_does_what_was_simulated_compares_as_equal() -> None:
    lines = _compared(trace_of(PLANNED.evaluated.step.spans, 5))
    assert ("stage 1 on b/cpu", "idle") in lines
    for (where, _), line in lines.items():
        if not where.startswith("link"):
            assert line.measured == pytest.approx(line.predicted, rel=1e-3, abs=1e-6)


def test_a_slower_run_shows_its_ratio_and_the_same_idle_part() -> None:
    lines = _compared(trace_of(PLANNED.evaluated.step.spans, 5, slowness=1.5))
    step = lines["step", "time"]
    assert step.predicted is not None
    assert step.measured == pytest.approx(1.5 * step.predicted, rel=1e-3)
    forward = lines["stage 0 on a/cpu", "forward"]
    assert (forward.predicted, forward.measured) == pytest.approx((0.03, 0.045))
    idle = lines["stage 1 on b/cpu", "idle"]
    assert idle.measured == pytest.approx(idle.predicted, abs=1e-3)


def test_clocks_of_hosts_need_not_agree() -> None:
    agreeing = observed_in(trace_of(PLANNED.evaluated.step.spans, 5))
    skewed = observed_in(trace_of(PLANNED.evaluated.step.spans, 5, ahead_s={1: 3600.0}))
    assert skewed.step_s == pytest.approx(agreeing.step_s)
    assert skewed.idle == pytest.approx(agreeing.idle, abs=1e-4)


def test_the_first_steps_do_not_count_if_there_are_others() -> None:
    slow_first = [
        event | ({"end_unix_ns": event["start_unix_ns"]} if event["step"] <= 2 and event["action"] == "F" else {})
        for event in trace_of(PLANNED.evaluated.step.spans, 4)
    ]
    assert observed_in(slow_first).action_s[0, ActionKind.FORWARD] == pytest.approx(0.03)
    assert observed_in(slow_first[: len(slow_first) // 2]).action_s[0, ActionKind.FORWARD] == 0.0


def test_one_step_alone_is_measured_from_its_own_begin() -> None:
    assert observed_in(trace_of(PLANNED.evaluated.step.spans, 1)).step_s == pytest.approx(PLANNED.report.step_s)


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(PipesvcError, match="has no step"):
        observed_in([_event(1, -1, "read", 0, 0, 1)])


def test_links_show_the_bytes_of_a_step_and_what_was_not_predicted() -> None:
    links = [
        {"link": "0>1/activation", "coded_bytes": 5 * 4 * MIB // 16},
        {"link": "feeder>1/label", "coded_bytes": 500},
    ]
    lines = _compared(trace_of(PLANNED.evaluated.step.spans, 5), links)
    activation = lines["link 0>1/activation", "bytes"]
    assert (activation.predicted, activation.measured) == (MIB // 4, MIB // 4)
    assert lines["link 1>0/gradient", "bytes"].measured is None
    assert lines["link feeder>1/label", "bytes"].predicted is None
    rows = comparison_text(list(lines.values())).splitlines()
    assert rows[0].split() == ["WHERE", "WHAT", "PREDICTED", "MEASURED", "RATIO"]
    shown = {" ".join(row.split()) for row in rows}
    assert "link 0>1/activation bytes 0.2 MiB 0.2 MiB 1.00" in shown
    assert "link feeder>1/label bytes - 100 bytes -" in shown


def test_rows_of_another_size_are_refused_and_those_of_the_run_are_not() -> None:
    known = replace(costs(device("a"), device("b")), micro_batch_rows=4)
    check_same_rows(known, PLANNED.plan, 16)
    check_same_rows(known, PLANNED.plan, 13)
    check_same_rows(replace(known, micro_batch_rows=0), PLANNED.plan, 99)
    with pytest.raises(PipesvcError, match=r"the run has 2 rows .* \(8 in 4\), and the job would have 4"):
        check_same_rows(known, PLANNED.plan, 8)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"boundaries": (3,)}, []),
        ({"boundaries": ("block3",), "placement": {"stage:0": "a", "stage:1": "b/cpu"}}, []),
        ({"boundaries": "auto", "schedule": "auto"}, []),
        ({"num_stages": 2, "schedule": "1f1b"}, []),
        ({"micro_batches": 2}, ["micro_batches is 2 and was 4"]),
        (
            {"schedule": "GPipe", "boundaries": (2,)},
            ["schedule is gpipe and was 1f1b", "boundaries is [2] and was [3]"],
        ),
        (
            {"in_flight": 3, "boundaries": ("x",)},
            ["in_flight is 3 and was 0", "boundaries is ['x'] and was ['block3']"],
        ),
        ({"num_stages": 3}, ["num_stages is 3 and was 2"]),
        ({"pipeline": False}, ["num_stages is 1 and was 2"]),
        (
            {"placement": {"stage:1": "a/cpu", "gpu:0": "b"}},
            ["stage:1 is a/cpu and was b/cpu", "gpu:0 is b and was nothing"],
        ),
    ],
)
def test_what_a_strategy_says_otherwise_than_a_plan_is_named(asked: dict[str, Any], said: list[str]) -> None:
    assert differences(job(**asked), PLANNED.plan) == said


def test_a_plan_has_the_micro_batches_of_all_mini_batches_of_a_step() -> None:
    assert differences(replace(job(micro_batches=2), accumulate=2), PLANNED.plan) == []
    assert differences(replace(job(), accumulate=2), PLANNED.plan) == ["micro_batches is 8 and was 4"]


def test_another_text_of_a_schedule_file_is_another_plan(tmp_path: Path) -> None:
    csv = tmp_path / "mine.csv"
    csv.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    asked = job(micro_batches=2, boundaries=(3,), schedule=ScheduleFile(csv))
    planned = plan_job(asked, costs(device("a"), device("b")), crew("a", "b"))
    assert differences(asked, planned.plan) == []
    csv.write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
    other = replace(asked.strategy, schedule=ScheduleFile(csv))
    assert differences(replace(asked, strategy=other), planned.plan) == ["the text of the schedule file is another"]
