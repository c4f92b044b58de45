"""Inputs whose values stay where they are: what crosses is plain, and the sizes come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipesvc.errors import PipesvcError
from pipesvc.wire import tree
from pipesvc.wire.tensors import TORCH_DTYPES
from pipesvc.worker import absent


def over_the_wire(value: Any) -> Any:
    structure, leaves = tree.flatten(value, lambda leaf: isinstance(leaf, torch.Tensor))
    return tree.unflatten(structure, leaves)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (4, 1, 5)])
def test_shape_and_type_come_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = absent.with_shapes(over_the_wire(absent.without(torch.empty(shape, dtype=dtype), lambda path: False)))
    assert isinstance(value, torch.Tensor)
    assert (value.is_meta, value.dtype, tuple(value.shape)) == (True, dtype, shape)


def test_what_is_read_stays_and_so_does_everything_else() -> None:
    value: dict[str, Any] = {
        "a": torch.ones(2),
        "b": [torch.ones(2, 3), None, "absent 1 2", 0.5],
        "c": (torch.ones(1),),
    }
    assert absent.paths_of(value) == ("a", "b.0", "c.0")
    sent = absent.without(value, {"a", "c.0"}.__contains__)
    assert sent["a"] is value["a"]
    assert isinstance(sent["b"][0], str)
    found = absent.with_shapes(over_the_wire(sent))
    assert torch.equal(found["a"], torch.ones(2))
    assert torch.equal(found["c"][0], torch.ones(1))
    assert tuple(found["b"][0].shape) == (2, 3)
    assert found["b"][1:] == value["b"][1:]


def test_one_tensor_alone_has_the_empty_path() -> None:
    assert absent.paths_of(torch.ones(1)) == ("",)


def test_a_type_that_cannot_travel_is_refused_here_too() -> None:
    with pytest.raises(PipesvcError, match="cannot travel"):
        absent.without(torch.ones(2).to_sparse(), lambda path: False)
