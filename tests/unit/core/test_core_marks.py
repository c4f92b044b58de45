"""The grammar of marks."""

from __future__ import annotations

import pytest

from pipesvc.core.marks import VALID_MARKS, Mark, MarkKind, parse
from pipesvc.errors import ErrorCode, PipesvcError


@pytest.mark.parametrize(
    ("label", "mark"),
    [
        ("cpu", Mark(kind=MarkKind.CPU)),
        ("cpu:big", Mark(kind=MarkKind.CPU, group="big")),
        ("cpu:Second-group_2", Mark(kind=MarkKind.CPU, group="Second-group_2")),
        ("gpu:0", Mark(kind=MarkKind.GPU, gpu_index=0)),
        ("gpu:17", Mark(kind=MarkKind.GPU, gpu_index=17)),
    ],
)
def test_valid_marks_parse_and_write_back(label: str, mark: Mark) -> None:
    assert parse(label) == mark
    assert str(mark) == label


@pytest.mark.parametrize(
    "label",
    [
        "",
        "cpu:",
        "cpu:0",
        "cpu:9a",
        "gpu",
        "gpu:",
        "gpu:00",
        "gpu:-1",
        "gpu:a",
        "CPU",
        "cuda:0",
        " cpu",
        "cpu\n",
        "tpu:0",
        "gpu:٣",
    ],
)
def test_anything_else_is_refused_with_the_valid_forms(label: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        parse(label)
    assert caught.value.code is ErrorCode.UNKNOWN_DEVICE
    assert caught.value.details.advice == VALID_MARKS
    assert repr(label) in str(caught.value)


def test_near_misses_say_why() -> None:
    for label, reason in {"cpu:0": "a CPU has no number", "gpu": "needs its number", "cuda:1": 'say "gpu:N"'}.items():
        with pytest.raises(PipesvcError, match=reason):
            parse(label)
