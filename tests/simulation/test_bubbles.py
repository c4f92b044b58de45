"""Simulated steps against the published formulas and tables.

Legend: p stages, m micro-batches, c the time of a hop; a forward takes 1, a backward 2.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.actions import needs, results
from pipesvc.core.simulate import play, simulate
from pipesvc.core.step_lists import step_lists
from pipesvc.core.timeline import Simulation
from tests.simulation.workloads import WHOLE, equal_stages, hops


def _step(schedule: str, p: int, m: int, *, hop_s: float = 0.0, in_flight: int = 0) -> Simulation:
    return simulate(schedule, equal_stages(p), num_micro_batches=m, in_flight=in_flight, link=hops(hop_s))


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("p", range(1, 6))
def test_a11_equal_stages_have_the_published_bubble(schedule: str, p: int) -> None:
    for m in range(1, 9):
        step = _step(schedule, p, m)
        assert step.step_s == (m + p - 1) * 3
        assert step.busy_s == (3 * m,) * p
        assert step.bubble == pytest.approx(float(Fraction(p - 1, m + p - 1)), abs=1e-15)
        assert step.worker_bubbles == dict.fromkeys(step.worker_busy_s, pytest.approx(step.bubble))


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("p", range(1, 6))
def test_a11_strict_order_has_the_published_bubble_too(schedule: str, p: int) -> None:
    stages = equal_stages(p)
    for m in range(1, 9):
        lists = step_lists(schedule, homes=[stage.worker for stage in stages], num_micro_batches=m)
        assert play(lists.in_order(), stages, num_micro_batches=m).step_s == (m + p - 1) * 3


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize("p", range(1, 6))
def test_a11_with_one_micro_batch_one_stage_is_busy_at_a_time(schedule: str, p: int) -> None:
    step = _step(schedule, p, 1)
    assert step.step_s == 3 * p
    ordered = [span for span in step.spans if span.end_s > span.start_s]
    assert all(before.end_s <= after.start_s for before, after in pairwise(ordered))


def test_naive_never_overlaps() -> None:
    step = _step("naive", 3, 4)
    assert step.step_s == 3 * 3 * 4
    assert step.bubble == pytest.approx(2 / 3)


@pytest.mark.parametrize("p", range(1, 6))
def test_peaks_in_flight_are_the_published_ones(p: int) -> None:
    for m in range(1, 9):
        assert _step("GPipe", p, m).peak_in_flight == (m,) * p
        assert _step("1F1B", p, m).peak_in_flight == tuple(min(m, p - stage) for stage in range(p))
        assert _step("naive", p, m).peak_in_flight == (1,) * p


# c -> plain 1F1B, capped (as published; the simulated one may be better), floor.
LATENCY = {
    (4, 16, 0.1): (59.8, 58.2, 57.6),
    (4, 16, 0.5): (71, 66, 60),
    (4, 16, 1.0): (85, 67, 63),
    (4, 16, 2.0): (113, 72, 69),
    (8, 32, 0.5): (151, 137, 124),
    (8, 32, 1.0): (185, 141, 131),
    (8, 32, 2.0): (253, 153, 145),
}


@pytest.mark.parametrize(("p", "m", "c"), LATENCY)
def test_more_in_flight_hides_the_hops_as_published(p: int, m: int, c: float) -> None:
    plain, capped, floor = LATENCY[p, m, c]
    cap = p + math.ceil(2 * c * (p - 1) / 3)
    assert floor == pytest.approx((m + p - 1) * 3 + 2 * c * (p - 1))
    assert _step("1F1B", p, m, hop_s=c).step_s == pytest.approx(plain)
    assert floor <= _step("1F1B", p, m, hop_s=c, in_flight=cap).step_s <= capped + 1e-9
    assert _step("1F1B", p, m, hop_s=c, in_flight=m).step_s == pytest.approx(floor)
    assert _step("GPipe", p, m, hop_s=c).step_s == pytest.approx(floor)


@given(
    schedule=st.sampled_from(WHOLE),
    homes=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    m=st.integers(1, 6),
    in_flight=st.integers(0, 8),
    hop_s=st.integers(0, 5),
    decides=st.booleans(),
    forward_s=st.integers(0, 9),
    backward_s=st.integers(0, 9),
)
def test_every_simulated_step_obeys_the_rules(
    schedule: str, homes: list[int], m: int, in_flight: int, hop_s: int, decides: bool, forward_s: int, backward_s: int
) -> None:
    """Whatever the times, also none, and the placement: all actions once, none before what it needs, none beside
    another, none over the bound."""
    p = len(homes)
    groups = [[stage for stage in range(p) if homes[stage] == home] for home in sorted(set(homes))]
    stages = equal_stages(groups, forward_s=forward_s, backward_s=backward_s)
    lists = step_lists(
        schedule, homes=[stage.worker for stage in stages], num_micro_batches=m, in_flight=in_flight, decides=decides
    )
    step = play(lists, stages, num_micro_batches=m, decides=decides, link=hops(hop_s))
    spans = {span.action: span for span in step.spans}
    assert len(spans) == len(step.spans) == 2 * p * m + p + (p + 1) * decides
    makers = {result: action for action in spans for result in results(action)}
    for action, span in spans.items():
        assert span.end_s - span.start_s == stages[action.stage].seconds(action.kind)
        for need in needs(action, num_stages=p, num_micro_batches=m, decides=decides):
            hop = hop_s if homes[need.stage] != homes[action.stage] else 0
            assert spans[makers[need]].end_s + hop <= span.start_s
    for home in set(homes):
        own = [span for span in step.spans if homes[span.action.stage] == home]
        assert all(before.end_s <= after.start_s for before, after in pairwise(own))
    for stage, peak in enumerate(step.peak_in_flight):
        assert 1 <= peak <= lists.bounds[stage]
    assert step.step_s == max(span.end_s for span in step.spans)
