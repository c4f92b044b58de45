"""The simulator, which runs ahead over integers, against one that goes from moment to moment and asks `choose`.

Times are whole numbers and rates powers of two, so that both add up to the same floats.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesvc.core.costs import LinkCost
from pipesvc.core.simulate import play
from pipesvc.core.stage_costs import StageCost
from pipesvc.core.step_graph import LinkOf
from pipesvc.core.step_lists import StepLists, step_lists
from pipesvc.core.timeline import Simulation
from pipesvc.errors import ErrorCode, PipesvcError
from tests.simulation.reference import Reference
from tests.simulation.workloads import ANYWHERE, random_lists

WORKERS = ("a", "b", "c")
HOMES = st.lists(st.sampled_from(WORKERS), min_size=1, max_size=5)
TIME = st.integers(1, 9)
SIZE = st.integers(0, 64)


@st.composite
def stages_on(draw: st.DrawFn, homes: list[str]) -> tuple[StageCost, ...]:
    return tuple(
        StageCost(
            worker=worker,
            forward_s=draw(TIME),
            backward_s=draw(TIME),
            input_backward_s=draw(TIME),
            weight_backward_s=draw(TIME),
            update_s=draw(TIME),
            norm_s=draw(TIME),
            decide_s=draw(TIME),
            output_bytes=draw(SIZE),
            output_gradient_bytes=draw(SIZE),
        )
        for worker in homes
    )


LINKS = st.fixed_dictionaries(
    {
        (sender, receiver): st.builds(
            LinkCost, latency_s=st.integers(0, 5), bytes_per_s=st.sampled_from([1, 4, 16, float("inf")])
        )
        for sender in WORKERS
        for receiver in WORKERS
    }
)


def _link_of(links: dict[tuple[str, str], LinkCost]) -> LinkOf:
    return lambda sender, receiver: links[sender, receiver]


def _assert_equal(step: Simulation, slow: Reference) -> None:
    assert {span.action: (span.start_s, span.end_s) for span in step.spans} == slow.spans
    assert step.step_s == max(end_s for _, end_s in slow.spans.values())
    assert dict(enumerate(step.peak_in_flight)) == slow.peaks
    assert dict(step.link_bytes) == slow.link_bytes


@settings(max_examples=80)
@given(
    schedule=st.sampled_from(ANYWHERE),
    homes=HOMES,
    num_micro_batches=st.integers(1, 7),
    in_flight=st.integers(0, 8),
    decides=st.booleans(),
    is_in_order=st.booleans(),
    links=LINKS,
    data=st.data(),
)
def test_schedules_are_played_as_by_the_reference(
    schedule: str,
    homes: list[str],
    num_micro_batches: int,
    in_flight: int,
    decides: bool,
    is_in_order: bool,
    links: dict[tuple[str, str], LinkCost],
    data: st.DataObject,
) -> None:
    lists = step_lists(schedule, homes=homes, num_micro_batches=num_micro_batches, in_flight=in_flight, decides=decides)
    if is_in_order:
        lists = lists.in_order()
    stages, link = data.draw(stages_on(homes)), _link_of(links)
    slow = Reference(lists=lists, stages=stages, num_micro_batches=num_micro_batches, decides=decides, link=link).run()
    assert not slow.stuck
    _assert_equal(play(lists, stages, num_micro_batches=num_micro_batches, decides=decides, link=link), slow)


@settings(max_examples=150)
@given(
    homes=HOMES,
    num_micro_batches=st.integers(1, 6),
    decides=st.booleans(),
    is_split=st.booleans(),
    seed=st.integers(0, 10**6),
    look_aheads=st.fixed_dictionaries({worker: st.integers(1, 9) for worker in WORKERS}),
    bounds=st.dictionaries(st.integers(0, 4), st.integers(1, 6)),
    links=LINKS,
    data=st.data(),
)
def test_lists_of_chance_are_played_as_by_the_reference(
    homes: list[str],
    num_micro_batches: int,
    decides: bool,
    is_split: bool,
    seed: int,
    look_aheads: dict[str, int],
    bounds: dict[int, int],
    links: dict[tuple[str, str], LinkCost],
    data: st.DataObject,
) -> None:
    """Under bounds that no one has checked a list may get stuck; then both get stuck at the same place."""
    per_worker = random_lists(homes, num_micro_batches=num_micro_batches, decides=decides, is_split=is_split, seed=seed)
    lists = StepLists(per_worker=per_worker, bounds=bounds, look_aheads=look_aheads)
    stages, link = data.draw(stages_on(homes)), _link_of(links)
    slow = Reference(lists=lists, stages=stages, num_micro_batches=num_micro_batches, decides=decides, link=link).run()
    if slow.stuck:
        with pytest.raises(PipesvcError, match=f"at {', '.join(map(str, slow.stuck))}. The") as caught:
            play(lists, stages, num_micro_batches=num_micro_batches, decides=decides, link=link)
        assert caught.value.code is ErrorCode.INVALID_PLAN
    else:
        _assert_equal(play(lists, stages, num_micro_batches=num_micro_batches, decides=decides, link=link), slow)
