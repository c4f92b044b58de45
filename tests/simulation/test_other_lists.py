"""Schedules with several stages on a worker, or a split backward, against the formulas of their authors: as the
generators make them, and as lists that no generator made.

Legend: p workers, m micro-batches, v stages of each worker; parts of a backward and all forwards take 1.
Sources: interleaved 1F1B, Narayanan et al. 2021 (arXiv:2104.04473); ZB-H1, Qi et al. 2023
(arXiv:2401.10241); ZB-V, Qi et al. 2024 (arXiv:2405.15362).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipesvc.core.actions import Action, parse
from pipesvc.core.simulate import play
from pipesvc.core.step_lists import StepLists, step_lists
from pipesvc.core.timeline import Simulation
from tests.simulation.workloads import equal_stages


def _played(
    texts: Sequence[str], homes: Sequence[Sequence[int]], num_micro_batches: int, backward_s: float
) -> Simulation:
    """In strict order; the updates, which take no time, follow at the end of each list."""
    per_worker: dict[str, list[Action]] = {}
    for worker, (text, stages) in enumerate(zip(texts, homes, strict=True)):
        updates = [parse(f"{stage}U") for stage in stages]
        per_worker[f"w{worker}"] = [parse(each) for each in text.split()] + updates
    lists = StepLists(per_worker=per_worker, bounds={}, look_aheads={}).in_order()
    return play(lists, equal_stages(homes, backward_s=backward_s), num_micro_batches=num_micro_batches)


def _interleaved(worker: int, p: int, m: int, v: int) -> str:
    """Stage k * p + worker is the worker's k-th; micro-batches go through in groups of p."""

    def parts(kind: str, is_backward: bool) -> list[str]:
        found = []
        for index in range(m * v):
            group, place = divmod(index, p * v)
            part = v - 1 - place // p if is_backward else place // p
            found.append(f"{part * p + worker}{kind}{group * p + place % p}")
        return found

    forwards, backwards = parts("F", False), parts("B", True)
    warm_up = min(2 * (p - 1 - worker) + (v - 1) * p, m * v)
    steady = [each for pair in zip(forwards[warm_up:], backwards, strict=False) for each in pair]
    return " ".join([*forwards[:warm_up], *steady, *backwards[m * v - warm_up :]])


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_a11_interleaved_lists_have_the_published_bubble(p: int, v: int) -> None:
    homes = [range(worker, p * v, p) for worker in range(p)]
    for m in (p, 2 * p, 4 * p):
        step = _played([_interleaved(worker, p, m, v) for worker in range(p)], homes, m, backward_s=2)
        assert step.step_s == (v * m + p - 1) * 3
        assert step.bubble == pytest.approx((p - 1) / (v * m + p - 1))


def _zb_h1(worker: int, p: int, m: int) -> str:
    """As 1F1B, with I for B, and each W as many micro-batches after its I as the worker's number."""
    ahead = p - 1 - worker
    found = [f"{worker}F{index}" for index in range(min(ahead, m))]
    for index in range(m):
        found += [f"{worker}F{index + ahead}"] if index + ahead < m else []
        found += [f"{worker}I{index}"]
        found += [f"{worker}W{index - worker}"] if index >= worker else []
    return " ".join(found + [f"{worker}W{index}" for index in range(max(m - worker, 0), m)])


@pytest.mark.parametrize("p", range(1, 6))
def test_a11_zb_h1_lists_have_the_published_bubble(p: int) -> None:
    homes = [[worker] for worker in range(p)]
    for m in (p, 2 * p, 3 * p + 1):
        step = _played([_zb_h1(worker, p, m) for worker in range(p)], homes, m, backward_s=2)
        assert step.step_s == 3 * m + p - 1
        assert step.bubble == pytest.approx((p - 1) / (3 * m + p - 1))
        assert max(step.peak_in_flight) <= p


# Two workers, the first with the first stage and the last: four micro-batches, four parts in flight on each worker.
ZB_V = (
    "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0I0 3I1 0W0 0F3 0I1 0W1 3F2 3I2 3W1 3W2 0I2 0W2 3F3 3I3 3W3 0I3 0W3",
    "1F0 2F0 1F1 2F1 2I0 1I0 1W0 1F2 2I1 1I1 2W0 2F2 1W1 1F3 2I2 1I2 2W1 2F3 1W2 2W2 2I3 1I3 1W3 2W3",
)


def test_a11_a_zb_v_list_has_the_published_bubble() -> None:
    """A worker is idle only while the first forward has not reached it, or the first worker at the end."""
    step = _played(ZB_V, [[0, 3], [1, 2]], 4, backward_s=2)
    assert step.step_s == 6 * 4 + 2 - 1
    assert step.worker_busy_s == {"w0": 24, "w1": 24}


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("v", [2, 3])
def test_a11_generated_interleaved_lists_have_the_published_bubble(p: int, v: int) -> None:
    for m in (p, 2 * p, 4 * p):
        step = _generated("Interleaved1F1B", [range(worker, p * v, p) for worker in range(p)], m)
        assert step.step_s == (v * m + p - 1) * 3
        assert step.bubble == pytest.approx((p - 1) / (v * m + p - 1))


@pytest.mark.parametrize("p", range(1, 6))
def test_a11_generated_zb_h1_lists_have_the_published_bubble(p: int) -> None:
    for m in (p, 2 * p, 3 * p + 1):
        step = _generated("ZBH1", [[worker] for worker in range(p)], m)
        assert step.step_s == 3 * m + p - 1
        assert max(step.peak_in_flight) <= p


@pytest.mark.parametrize("p", range(1, 6))
def test_a11_a_generated_zb_v_list_is_never_idle_within_its_span(p: int) -> None:
    for m in (2 * p, 3 * p, 4 * p + 1):
        homes = [sorted({worker, 2 * p - 1 - worker}) for worker in range(p)]
        step = _generated("ZBV", homes, m)
        for stages in homes:
            own = [span for span in step.spans if span.action.stage in stages and span.end_s > span.start_s]
            assert max(span.end_s for span in own) - min(span.start_s for span in own) == 6 * m


def _generated(schedule: str, homes: Sequence[Sequence[int]], num_micro_batches: int) -> Simulation:
    stages = equal_stages(homes)
    lists = step_lists(schedule, homes=[stage.worker for stage in stages], num_micro_batches=num_micro_batches)
    return play(lists.in_order(), stages, num_micro_batches=num_micro_batches)
