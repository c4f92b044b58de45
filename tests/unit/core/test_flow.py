"""What a recorded flow says of any cut, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.flow import (
    Flow,
    Joined,
    Value,
    check_ends,
    difference,
    gradient_transfers,
    inputs_of,
    owned_by,
    parameters_of,
    shared_parameters,
    stage_of,
    transfers,
)
from pipesvc.core.layer_info import LayerInfo, SharedParameter
from pipesvc.errors import PipesvcError


def value(key: str, producer: int, users: Sequence[int], *, is_differentiable: bool = True) -> Value:
    return Value(
        key=key,
        producer=producer,
        users=tuple(users),
        shape=(2, 3),
        dtype="float32",
        num_bytes=24,
        is_differentiable=is_differentiable,
    )


def units(*names: str) -> tuple[LayerInfo, ...]:
    return tuple(LayerInfo(name=name, type="Linear") for name in names)


# a makes h and a skip for e; integers of the preamble go to c; a's weight is e's too.
FLOW = Flow(
    units=units("a", "b", "c", "d", "e"),
    values=(
        value("0.1.0", -1, [2], is_differentiable=False),
        value("1.0.0", 0, [1, 3, 4]),
        value("2.0.0", 1, [2]),
        value("3.0.0", 2, [3]),
        value("4.0.0", 3, [4]),
    ),
    input_users={"ids": (0,), "mask": (-1, 2, 4), "unused": ()},
    parameters={"a.weight": (0, 4), "b.weight": (1,), "spare": ()},
    buffers={"c.mean": (2,)},
)


def test_glue_before_the_first_unit_lies_on_stage_0() -> None:
    assert [stage_of((2, 3, 5), position) for position in range(-1, 5)] == [0, 0, 0, 1, 2, 2]


def test_n11_a_value_goes_straight_to_each_stage_that_uses_it() -> None:
    assert transfers(FLOW, (1, 2, 4, 5)) == {
        (0, 1): ("1.0.0",),
        (0, 2): ("0.1.0", "1.0.0"),
        (0, 3): ("1.0.0",),
        (1, 2): ("2.0.0",),
        (2, 3): ("4.0.0",),
    }
    assert transfers(FLOW, (5,)) == {}


def test_a_gradient_visits_the_users_from_the_last_to_the_first() -> None:
    """Whoever sends the gradient of a value last sends it to the value's maker; integers have none."""
    assert gradient_transfers(FLOW, (1, 2, 4, 5)) == {
        (1, 0): ("1.0.0",),
        (2, 1): ("1.0.0", "2.0.0"),
        (3, 2): ("1.0.0", "4.0.0"),
    }


@given(st.sets(st.integers(1, 4)))
def test_as_many_gradients_come_back_as_differentiable_values_went(cuts: set[int]) -> None:
    ends = (*sorted(cuts), 5)
    keys = [key for keys in transfers(FLOW, ends).values() for key in keys if key != "0.1.0"]
    gradients = [key for keys in gradient_transfers(FLOW, ends).values() for key in keys]
    assert sorted(gradients) == sorted(keys)
    assert all(receiver < sender for sender, receiver in gradient_transfers(FLOW, ends))
    assert all(producer < consumer for producer, consumer in transfers(FLOW, ends))


def test_inputs_go_to_the_stages_that_read_them() -> None:
    ends = (2, 4, 5)
    assert [inputs_of(FLOW, ends, stage) for stage in range(3)] == [("ids", "mask"), ("mask",), ("mask",)]


def test_every_parameter_and_buffer_has_a_stage() -> None:
    ends = (2, 4, 5)
    held = [parameters_of(FLOW, ends, stage) for stage in range(3)]
    assert held == [("a.weight", "b.weight", "spare"), ("c.mean",), ("a.weight",)]


def test_the_gradient_of_a_shared_parameter_goes_down_its_users_unless_it_is_frozen() -> None:
    table = {"free": (0, 1, 3, 4), "frozen": (0, 4)}
    shared = tuple(SharedParameter(name=name, num_bytes=4, is_trained=name == "free") for name in table)
    flow = replace(FLOW, values=(), parameters=table, shared=shared)
    assert gradient_transfers(flow, (1, 3, 4, 5)) == {
        (1, 0): ("parameter:free",),
        (2, 1): ("parameter:free",),
        (3, 2): ("parameter:free",),
    }
    assert gradient_transfers(flow, (5,)) == {}


def test_each_parameter_and_buffer_belongs_to_one_stage() -> None:
    flow = replace(FLOW, buffers={"c.mean": (2, 4)})
    assert [owned_by(flow, (2, 4, 5), stage) for stage in range(3)] == [
        ("a.weight", "b.weight", "spare"),
        ("c.mean",),
        (),
    ]
    assert parameters_of(flow, (2, 4, 5), 2) == ("a.weight", "c.mean")


def test_shared_parameters_are_those_of_several_stages() -> None:
    assert shared_parameters(FLOW, (2, 5)) == {"a.weight": (0, 1)}
    assert shared_parameters(FLOW, (5,)) == {}


@pytest.mark.parametrize("ends", [(), (3,), (5, 5), (0, 5), (3, 2, 5), (2, 6)])
def test_ends_that_do_not_cut_the_units_are_refused(ends: Sequence[int]) -> None:
    with pytest.raises(PipesvcError, match="do not cut 5 units into non-empty stages"):
        check_ends(FLOW, ends)


def test_what_is_joined_cannot_be_parted() -> None:
    joined = Joined(first=1, last=3, reason="a checkpointed function calls both", advice="Cut elsewhere.")
    flow = replace(FLOW, joined=(joined,))
    for ends in ((1, 5), (4, 5), (5,), (1, 4, 5)):
        check_ends(flow, ends)
    for ends in ((2, 5), (3, 5), (1, 3, 5)):
        with pytest.raises(PipesvcError, match=r"units 'b' and 'd' .* checkpointed function.*Cut elsewhere"):
            transfers(flow, ends)


def test_a_difference_is_told_sizes_apart() -> None:
    larger = tuple(replace(each, shape=(9, 9), num_bytes=324) for each in FLOW.values)
    assert difference(FLOW, replace(FLOW, values=larger)) == ""
    assert difference(FLOW, replace(FLOW, units=units("a", "b", "x", "d", "e"))) == (
        "it goes on with 'c' in one and 'x' in the other"
    )
    assert difference(FLOW, replace(FLOW, units=units("a", "b"))) == (
        "it goes on with 'c' in one and the end of forward in the other"
    )
    other = (*FLOW.values[:2], value("2.1.0", 1, [2]), *FLOW.values[3:])
    assert difference(FLOW, replace(FLOW, values=other)) == (
        "what is made after 'b' and used later differs (value 2.0.0)"
    )
    assert difference(FLOW, replace(FLOW, values=FLOW.values[1:])).startswith("what is made before the first unit")
    assert difference(FLOW, replace(FLOW, parameters={})) == "'a.weight' is used by other units"
    assert difference(FLOW, replace(FLOW, input_users={**FLOW.input_users, "ids": (1,)})) == (
        "'ids' is used by other units"
    )
    joined = Joined(first=1, last=3, reason="", advice="")
    assert difference(FLOW, replace(FLOW, joined=(joined,))) == "other units must stay together"
