"""Actions and their text form."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.actions import (
    PER_MICRO_BATCH,
    Action,
    ActionKind,
    backward,
    forward,
    input_backward,
    needs,
    parse,
    results,
    weight_backward,
)
from pipesvc.errors import ErrorCode, PipesvcError

INDICES = st.integers(0, 999_999_999)
ACTIONS = st.one_of(
    st.builds(Action, INDICES, st.sampled_from(sorted(PER_MICRO_BATCH)), INDICES),
    st.builds(Action, INDICES, st.sampled_from(sorted(set(ActionKind) - PER_MICRO_BATCH))),
)


@given(ACTIONS)
def test_text_parses_back(action: Action) -> None:
    assert parse(str(action)) == action


@given(st.text(alphabet="0123FBIWNDU -\n٣", max_size=6))
def test_parse_takes_only_what_str_writes(text: str) -> None:
    with contextlib.suppress(PipesvcError):
        assert str(parse(text)) == text


def test_text_form() -> None:
    made = [forward(0, 3), backward(2, 11), input_backward(1, 0), weight_backward(1, 0), Action(2, ActionKind.UPDATE)]
    assert list(map(str, made)) == ["0F3", "2B11", "1I0", "1W0", "2U"]


@pytest.mark.parametrize(
    "text", ["", "F0", "0F", "0U1", "0f1", "00F1", "0F01", "0F1 ", " 0F1", "0F1\n", "-1F0", "0X1", "٣F1"]
)
def test_junk_is_refused(text: str) -> None:
    with pytest.raises(PipesvcError, match="is not an action") as caught:
        parse(text)
    assert caught.value.code is ErrorCode.INVALID_PLAN


@pytest.mark.parametrize(
    ("stage", "kind", "micro_batch"),
    [
        (0, ActionKind.FORWARD, None),
        (0, ActionKind.BACKWARD, -1),
        (0, ActionKind.UPDATE, 1),
        (-1, ActionKind.UPDATE, None),
    ],
)
def test_impossible_actions_are_refused_at_birth(stage: int, kind: ActionKind, micro_batch: int | None) -> None:
    with pytest.raises(ValueError, match=r"stage index|micro-batch"):
        Action(stage, kind, micro_batch)


def test_actions_sort_by_stage_kind_and_micro_batch() -> None:
    texts = ["1U", "0F10", "0F2", "0B1", "0U", "1F0"]
    assert [str(action) for action in sorted(map(parse, texts))] == ["0B1", "0F2", "0F10", "0U", "1F0", "1U"]


def _needs(text: str, *, decides: bool = False) -> list[str]:
    needed = needs(parse(text), num_stages=3, num_micro_batches=2, decides=decides)
    return [f"{kind.value} {stage}" + ("" if index is None else f".{index}") for stage, kind, index in needed]


def test_what_each_action_needs() -> None:
    assert _needs("0F1") == []
    assert _needs("1F1") == ["output 0.1"]
    assert _needs("2B1") == ["output 2.1"]
    assert _needs("1B0") == _needs("1I0") == ["output 1.0", "input gradient 2.0"]
    assert _needs("1W0") == ["input gradient 1.0"]
    assert _needs("1U") == ["weight gradient 1.0", "weight gradient 1.1"]
    assert _needs("1N", decides=True) == ["weight gradient 1.0", "weight gradient 1.1"]
    assert _needs("0D", decides=True) == ["norm 0", "norm 1", "norm 2"]
    assert _needs("1U", decides=True) == ["scale 0"]


def test_a_whole_backward_gives_what_its_two_parts_give() -> None:
    assert {*results(parse("1B0"))} == {*results(parse("1I0")), *results(parse("1W0"))}
