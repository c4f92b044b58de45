"""What verify says of two runs: the first difference by name and size, or none."""

from __future__ import annotations

import math

import pytest
import torch

from pipesvc.verification.difference import first_difference


def test_equal_runs_have_no_difference_also_where_both_are_nan() -> None:
    state = {"a": torch.tensor([1.0, math.nan]), "b": torch.tensor([1, 2])}
    copy = {name: value.clone() for name, value in state.items()}
    assert first_difference([1.0, math.nan], [1.0, math.nan], state, copy) is None


def test_the_first_step_whose_loss_differs_is_told_with_both_numbers() -> None:
    found = first_difference([1.0, 2.0, 3.0], [1.0, 2.5, 3.5], {}, {})
    assert found is not None
    assert (found.name, found.size, found.is_close) == ("the loss of step 2", 0.5, False)
    assert "2.0 in the pipeline and 2.5 in one process" in found.text


def test_the_first_tensor_in_the_models_order_is_told_with_its_size() -> None:
    plain = {"z": torch.zeros(3), "a": torch.tensor([1.0, 2.0, 3.0]), "b": torch.ones(1)}
    split = {"a": torch.tensor([1.0, 2.5, 3.25]), "b": torch.zeros(1), "z": torch.zeros(3)}
    found = first_difference([1.0], [1.0], split, plain)
    assert found is not None
    assert (found.name, found.size) == ("a", 0.5)
    assert found.text == "a differs in 2 of 3 elements, by 0.5 at most"


def test_what_is_more_than_rounding_is_told_before_what_is_close() -> None:
    plain = {"close": torch.ones(1), "far": torch.ones(1)}
    split = {"close": torch.ones(1) + 1e-7, "far": torch.ones(1) + 1}
    found = first_difference([], [], split, plain)
    assert found is not None
    assert (found.name, found.is_close) == ("far", False)
    del split["far"], plain["far"]
    found = first_difference([], [], split, plain)
    assert found is not None
    assert (found.name, found.is_close) == ("close", True)


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ({}, "a is there in one process only"),
        ({"a": torch.zeros(2), "b": torch.zeros(1)}, "b is there in the pipeline only"),
        ({"a": torch.zeros(3)}, "a is float32 of shape (3,) in the pipeline and float32 of shape (2,) in one process"),
        ({"a": torch.zeros(2).double()}, "float64 of shape (2,) in the pipeline"),
    ],
)
def test_other_names_shapes_and_types_are_differences(split: dict[str, torch.Tensor], text: str) -> None:
    found = first_difference([], [], split, {"a": torch.zeros(2)})
    assert found is not None
    assert text in found.text
    assert not found.is_close


def test_the_size_is_of_what_differs_where_others_are_nan_or_infinite_in_both() -> None:
    plain = {"a": torch.tensor([math.nan, math.inf, 1.0])}
    found = first_difference([], [], {"a": torch.tensor([math.nan, math.inf, 1.5])}, plain)
    assert found is not None
    assert (found.size, found.text) == (0.5, "a differs in 1 of 3 elements, by 0.5 at most")


def test_other_numbers_of_steps_are_a_difference() -> None:
    found = first_difference([1.0], [1.0, 2.0], {}, {})
    assert found is not None
    assert found.text == "the pipeline trained 1 steps, one process 2"
