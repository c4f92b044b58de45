"""Structures go through JSON unchanged; anything that is not on the list is refused by its type and place."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.wire.tree import MAX_DEPTH, MAX_STRUCTURE_BYTES, flatten, unflatten


class Tensor:
    """Stands for a tensor: equal only to itself."""


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**64) + 1, max_value=2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.builds(Tensor)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


def types_of(value: Any) -> Any:
    """The types at every place, for 1 == 1.0 == True and [] != () only partly tell them apart."""
    if isinstance(value, dict):
        return dict, [(key, types_of(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types_of(item) for item in value]
    return type(value)


@settings(deadline=None)
@given(TREES)
def test_round_trip(value: Any) -> None:
    structure, leaves = flatten(value, is_tensor)
    assert structure.isascii()
    json.loads(structure, parse_constant=pytest.fail)
    again = unflatten(structure, leaves)
    assert again == value
    assert types_of(again) == types_of(value)


def test_text_form() -> None:
    x, m = Tensor(), Tensor()
    structure, leaves = flatten((x, {"mask": m, "n": 3}), is_tensor)
    assert structure == '["tuple",["tensor"],["dict",["mask",["tensor"]],["n",3]]]'
    assert leaves == [x, m]
    assert flatten(x, is_tensor) == ('["tensor"]', [x])


def test_floats_are_exact_down_to_sign_of_zero_and_nan() -> None:
    values = [0.1, -0.0, math.inf, -math.inf, 5e-324, math.nan]
    again = unflatten(flatten(values, is_tensor)[0], [])
    assert [value.hex() for value in again] == [value.hex() for value in values]


def test_words_of_the_format_are_ordinary_text_in_a_value() -> None:
    value = [["tensor"], "tensor", ("float", "0x1p0"), {"dict": ["list"]}]
    assert unflatten(flatten(value, is_tensor)[0], []) == value


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2, 3}]}, r"value\['a'\]\[1\] is of type set"),
        (Point(1, 2), "of type .*Point"),
        (OrderedDict(a=1), "of type collections.OrderedDict"),
        (b"bytes", "of type bytes"),
        (1j, "of type complex"),
        ({1: 2}, "a dict with a key of type int"),
        (2**64, "an int of 65 bits"),
        (ErrorCode.INTERNAL, "of type pipesvc.errors.ErrorCode"),
    ],
)
def test_other_types_are_refused_by_name_and_place(value: Any, message: str) -> None:
    with pytest.raises(PipesvcError, match=message) as caught:
        flatten(value, is_tensor)
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_depth_and_size_are_bounded_on_the_way_out() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PipesvcError, match=f"deeper than {MAX_DEPTH}"):
        flatten(endless, is_tensor)
    with pytest.raises(PipesvcError, match="structure around 0 tensors takes"):
        flatten("x" * MAX_STRUCTURE_BYTES, is_tensor)


def test_the_deepest_allowed_value_comes_back() -> None:
    value: Any = Tensor()
    for _ in range(MAX_DEPTH):
        value = [value]
    structure, leaves = flatten(value, is_tensor)
    assert unflatten(structure, leaves) == value


@pytest.mark.parametrize(
    "structure",
    [
        "",
        "{",
        "{}",
        "[]",
        "0.5",
        "NaN",
        '["set",1]',
        '["tensor",1]',
        '["float",1]',
        '["float","x"]',
        '["float","0x1p99999"]',
        '["dict",["a"]]',
        '["dict",[1,2]]',
        '["dict",["a",1],["a",2]]',
        "[" * 100_000,
        '["list",' * 40 + "1" + "]" * 40,
        " " * (MAX_STRUCTURE_BYTES + 1) + "1",
        "1" * 5000,
    ],
)
def test_malformed_structures_are_refused(structure: str) -> None:
    with pytest.raises(PipesvcError, match="malformed structure") as caught:
        unflatten(structure, [])
    assert caught.value.code is ErrorCode.BAD_FRAME


def test_the_number_of_tensors_must_fit() -> None:
    with pytest.raises(PipesvcError, match="more than the 0 tensors"):
        unflatten('["tensor"]', [])
    with pytest.raises(PipesvcError, match="1 of 2 tensors have no place"):
        unflatten('["tensor"]', [Tensor(), Tensor()])


@settings(deadline=None)
@given(st.text(max_size=60) | TREES.map(lambda value: flatten(value, is_tensor)[0][1:]))
def test_arbitrary_text_gives_a_value_or_the_named_error(structure: str) -> None:
    try:
        unflatten(structure, [])
    except PipesvcError as error:
        assert error.code is ErrorCode.BAD_FRAME  # noqa: PT017 - a value is as good
