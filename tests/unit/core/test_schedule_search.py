"""`schedule="auto"`: what is chosen, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.costs import LinkCost
from pipesvc.core.schedule_search import choose_schedule, evaluate, seconds_text
from pipesvc.core.stage_costs import StageCost
from pipesvc.errors import ErrorCode, PipesvcError

GIB = 2**30


def _stages(num_stages: int, memory_gib: float = 0, activation_gib: float = 0.5) -> list[StageCost]:
    return [
        StageCost(
            worker=f"w{stage}",
            memory_bytes=int(memory_gib * GIB),
            forward_s=0.1,
            backward_s=0.2,
            weight_bytes=GIB,
            gradient_bytes=GIB,
            optimizer_bytes=2 * GIB,
            activation_bytes=int(activation_gib * GIB),
        )
        for stage in range(num_stages)
    ]


def _hop(latency_s: float) -> LinkCost:
    return LinkCost(latency_s=latency_s)


def test_without_hops_plain_1f1b_holds_least() -> None:
    found = choose_schedule(_stages(4), num_micro_batches=16)
    assert str(found.best) == "1F1B"
    assert found.best.step.step_s == pytest.approx((16 + 3) * 0.3)
    assert found.reason == (
        "1F1B: 5.7 s a step, bubble 16 %.",
        "GPipe would take as long and holds 27.0 GiB more.",
    )


def test_hops_are_hidden_by_the_fewest_in_flight_that_do() -> None:
    stages = _stages(4)
    found = choose_schedule(stages, num_micro_batches=16, link=lambda *_: _hop(0.1))
    assert (found.best.schedule, found.best.in_flight) == ("1F1B", 7)
    assert found.best.step.step_s == pytest.approx(6.3)
    for cap in (4, 5, 6):
        fewer = evaluate("1F1B", stages, num_micro_batches=16, in_flight=cap, link=lambda *_: _hop(0.1))
        assert fewer.step.step_s > 6.4
    assert found.reason == (
        "1F1B with 7 in flight: 6.3 s a step, bubble 24 %; "
        "hops of 100 ms are hidden but at start and end, where they add 600 ms.",
        "GPipe would take as long and holds 24.0 GiB more.",
    )


def test_a_short_hop_is_hidden() -> None:
    found = choose_schedule(_stages(2), num_micro_batches=64, link=lambda *_: _hop(0.001))
    assert found.reason[0].endswith("; hops of 1 ms are hidden.")


def test_memory_keeps_the_number_in_flight_down() -> None:
    found = choose_schedule(_stages(4, memory_gib=6.9), num_micro_batches=16, link=lambda *_: _hop(0.1))
    assert (found.best.schedule, found.best.in_flight) == ("1F1B", 5)
    assert found.best.fits
    assert found.reason == (
        "1F1B with 5 in flight: 7.5 s a step, bubble 36 %; hops of 100 ms add 1.8 s.",
        "GPipe would take 6.3 s but needs 12.0 GiB of 6.9 GiB on w0/cpu.",
    )


def test_fewer_in_flight_than_stages_where_plain_1f1b_does_not_fit() -> None:
    found = choose_schedule(_stages(4, memory_gib=5.5), num_micro_batches=16)
    assert (found.best.schedule, found.best.in_flight) == ("1F1B", 3)
    assert "would take 5.7 s but needs" in found.reason[1]


def test_p04_a_plan_that_never_fits_is_refused_with_the_sum() -> None:
    with pytest.raises(PipesvcError, match=r"1 x 0\.5 GiB activations = 4\.5 GiB of 4\.0 GiB") as caught:
        choose_schedule(_stages(2, memory_gib=4), num_micro_batches=4)
    assert caught.value.code is ErrorCode.INVALID_PLAN


def test_p06_one_micro_batch_on_four_stages() -> None:
    found = choose_schedule(_stages(4), num_micro_batches=1)
    assert found.best.step.step_s == pytest.approx(1.2)
    assert found.reason[1] == "GPipe would take as long and holds as much."


def test_one_stage_needs_no_second_micro_batch_in_flight() -> None:
    found = choose_schedule(_stages(1), num_micro_batches=8)
    assert found.best.step.peak_in_flight == (1,)
    assert found.best.step.bubble == pytest.approx(0)


@given(
    homes=st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    num_micro_batches=st.integers(1, 24),
    hop_s=st.sampled_from([0.0, 0.5, 1, 4]),
    memory_bytes=st.integers(0, 40),
    data=st.data(),
)
def test_no_cap_that_fits_is_much_faster(
    homes: list[str], num_micro_batches: int, hop_s: float, memory_bytes: int, data: st.DataObject
) -> None:
    """Against all caps, not only those that the search tries; and what is refused does not fit with one in flight."""
    size = st.integers(0, 5)
    stages = [
        StageCost(
            worker=home,
            memory_bytes=memory_bytes,
            forward_s=data.draw(st.integers(1, 4)),
            backward_s=data.draw(st.integers(1, 8)),
            weight_bytes=data.draw(size),
            activation_bytes=data.draw(size),
            output_bytes=data.draw(size),
        )
        for home in homes
    ]

    def play(in_flight: int) -> tuple[float, bool]:
        candidate = evaluate(
            "1F1B", stages, num_micro_batches=num_micro_batches, in_flight=in_flight, link=lambda *_: _hop(hop_s)
        )
        return candidate.step.step_s, candidate.fits

    try:
        found = choose_schedule(stages, num_micro_batches=num_micro_batches, link=lambda *_: _hop(hop_s))
    except PipesvcError:
        assert not play(1)[1]
        return
    assert found.best.fits
    assert found.runner_up is not found.best
    tried = [play(cap) for cap in range(1, max(len(homes), num_micro_batches) + 1)]
    fastest_s = min(step_s for step_s, fits in tried if fits)
    assert found.best.step.step_s <= 1.1 * fastest_s


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00004, "40 us"), (0.04, "40 ms"), (1.9234, "1.92 s"), (61.27, "61.3 s"), (1234.5, "1234 s")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def _split_stages(num_stages: int, input_s: float, weight_s: float, owners: str = "abcd") -> list[StageCost]:
    return [
        StageCost(
            worker=owners[stage],
            forward_s=0.1,
            backward_s=0.2,
            input_backward_s=input_s,
            weight_backward_s=weight_s,
            activation_bytes=GIB,
        )
        for stage in range(num_stages)
    ]


def test_a_split_backward_wins_where_it_gains_more_than_it_costs() -> None:
    free = choose_schedule(_split_stages(4, 0.1, 0.1), num_micro_batches=8)
    assert free.best.schedule == "ZBH1"
    assert free.best.step.step_s < 0.9 * evaluate("1F1B", _split_stages(4, 0.1, 0.1), num_micro_batches=8).step.step_s
    dear = choose_schedule(_split_stages(4, 0.13, 0.13), num_micro_batches=8)
    assert dear.best.schedule == "1F1B"


def test_a_split_backward_of_which_nothing_can_wait_is_not_tried() -> None:
    found = choose_schedule(_split_stages(4, 0.2, 0.0), num_micro_batches=8)
    assert (found.best.schedule, found.runner_up.schedule) == ("1F1B", "GPipe")


@pytest.mark.parametrize(
    ("owners", "weight_s", "schedule"),
    [("abba", 0.1, "ZBV"), ("abcdabcd", 0.0, "Interleaved1F1B"), ("aabb", 0.0, "1F1B")],
)
def test_several_stages_on_a_worker_have_schedules_of_their_own(owners: str, weight_s: float, schedule: str) -> None:
    found = choose_schedule(_split_stages(len(owners), 0.2 - weight_s, weight_s, owners), num_micro_batches=8)
    assert found.best.schedule == schedule
