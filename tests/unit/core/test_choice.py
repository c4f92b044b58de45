"""The rule by which the next action is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesvc.core.actions import Action, Result, needs, parse, results
from pipesvc.core.choice import LOOK_AHEAD, choose
from pipesvc.core.live import live_change, live_peaks
from pipesvc.core.schedules import homes, worker_actions


def _choose(
    pending: str, ready: str, *, live: dict[int, int] | None = None, look_ahead: int = LOOK_AHEAD, bound: int = 9
) -> str | None:
    actions = [parse(text) for text in pending.split()]
    is_ready = {parse(text) for text in ready.split()}.__contains__
    index = choose(actions, is_ready, live or {}, dict.fromkeys(range(4), bound), look_ahead)
    return None if index is None else str(actions[index])


@pytest.mark.parametrize(
    ("pending", "ready", "chosen"),
    [
        ("0F0 0F1", "0F0 0F1", "0F0"),
        ("0F0 0F1", "0F1", None),  # the same kind keeps its order
        ("0F2 0B0", "0B0", "0B0"),  # a late forward does not hold up a backward
        ("0F2 0B2", "0B2", None),  # its own forward does
        ("0B0 0F2", "0F2", "0F2"),
        ("0B0 0B1 0U", "0U", None),
        ("0F1 0N", "0N", None),
        ("0N 0D 0U", "0D 0U", None),
        ("0F0 1F0", "1F0", "1F0"),  # stages do not hold each other up
        ("0U 0F0", "0F0", None),  # the next step waits for the update
        ("0U 1F0", "1F0", "1F0"),
        ("0F2 0I0", "0I0", "0I0"),
        ("0F2 0I2", "0I2", None),
        ("0W0 0I1", "0I1", "0I1"),  # others wait for an I
        ("0I1 0W0", "0W0", "0W0"),  # a W fills the wait for a gradient
        ("0I0 0W0", "0W0", None),  # but not that of its own micro-batch
        ("0W0 0W1", "0W1", None),
        ("0I0 0B1", "0B1", None),  # gradients are added in order, whole or split
        ("0W0 0B1", "0B1", None),
        ("0B0 0W1", "0W1", None),
        ("0W0 0U", "0U", None),
        ("0F0", "", None),
        ("", "", None),
    ],
)
def test_the_first_entry_that_may_run_is_chosen(pending: str, ready: str, chosen: str | None) -> None:
    assert _choose(pending, ready) == chosen


# What an action waits for on its own stage whatever the micro-batches, if it stands behind it. Of the other kinds it
# waits for its own micro-batch alone.
FOLLOWS: dict[str, str] = {"F": "FU", "B": "BIWNDU", "I": "BINDU", "W": "BWNDU", "N": "*", "D": "*", "U": "*"}


def test_n07_what_may_overtake_what_is_this_table_and_nothing_else() -> None:
    def text(kind: str, index: int) -> str:
        return f"0{kind}{index}" if kind in "FBIW" else f"0{kind}"

    for kind, followed in FOLLOWS.items():
        for other in FOLLOWS:
            for index in (0, 1, 2):
                action, before = text(kind, 1), text(other, index)
                if action == before:
                    continue
                is_held = other in followed or followed == "*" or (other in "FBIW" and index == 1)
                assert _choose(f"{before} {action}", action) == (None if is_held else action), f"{action} at {before}"


def test_only_entries_within_the_look_ahead_are_seen() -> None:
    assert _choose("0F2 1F1 2F0", "2F0", look_ahead=3) == "2F0"
    assert _choose("0F2 1F1 2F0", "2F0", look_ahead=2) is None


def test_a_forward_stays_within_the_bound() -> None:
    assert _choose("0F2 0B0", "0F2", live={0: 2}, bound=2) is None
    assert _choose("0F2 0B0", "0F2 0B0", live={0: 2}, bound=2) == "0B0"
    assert _choose("0F2 0B0", "0F2", live={0: 1}, bound=2) == "0F2"


def test_readiness_is_asked_only_for_entries_that_may_run() -> None:
    asked: list[str] = []

    def is_ready(action: Action) -> bool:
        asked.append(str(action))
        return False

    choose([parse(text) for text in ["0F0", "0F1", "0B0", "1F0"]], is_ready, {}, {})
    assert asked == ["0F0", "1F0"]


@settings(deadline=None)
@given(
    schedule=st.sampled_from(["naive", "GPipe", "1F1B", "ZBH1", "Interleaved1F1B", "ZBV"]),
    homes_anywhere=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    num_workers=st.integers(2, 3),
    num_micro_batches=st.integers(1, 6),
    in_flight=st.integers(0, 7),
    look_ahead=st.integers(1, 9),
    decides=st.booleans(),
    data=st.data(),
)
def test_workers_that_go_in_any_order_always_reach_the_end(
    schedule: str,
    homes_anywhere: list[int],
    num_workers: int,
    num_micro_batches: int,
    in_flight: int,
    look_ahead: int,
    decides: bool,
    data: st.DataObject,
) -> None:
    """Whichever worker is given the next turn: as long as something is left, one of them may run."""
    places: Sequence[int] = homes_anywhere
    if schedule in ("Interleaved1F1B", "ZBV"):
        places = homes(schedule, num_stages=2 * num_workers, num_workers=num_workers)
    num_stages = len(places)
    pending = [
        list(
            worker_actions(
                schedule,
                stages=[stage for stage, home in enumerate(places) if home == worker],
                num_stages=num_stages,
                num_micro_batches=num_micro_batches,
                in_flight=in_flight if schedule == "1F1B" else 0,
                decides=decides,
            )
        )
        for worker in sorted(set(places))
    ]
    bounds = {stage: peak for actions in pending for stage, peak in live_peaks(actions).items()}
    done: set[Result] = set()
    live = dict.fromkeys(range(num_stages), 0)

    def is_ready(action: Action) -> bool:
        return done.issuperset(
            needs(action, num_stages=num_stages, num_micro_batches=num_micro_batches, decides=decides)
        )

    while any(pending):
        choices = [(actions, choose(actions, is_ready, live, bounds, look_ahead)) for actions in pending]
        able = [(actions, index) for actions, index in choices if index is not None]
        assert able, f"stuck at {[str(actions[0]) for actions in pending if actions]}"
        actions, index = data.draw(st.sampled_from(able)) if len(able) > 1 else able[0]
        action = actions.pop(index)
        done.update(results(action))
        live[action.stage] += live_change(action)
        assert live[action.stage] <= bounds[action.stage]
