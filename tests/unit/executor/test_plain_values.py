"""State of optimizers as text and back, exactly, and by name what has no such text."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipesvc.errors import PipesvcError
from pipesvc.worker.executor import plain_values


def there_and_back(value: Any) -> Any:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> int:
        kept.append(tensor)
        return len(kept) - 1

    text = plain_values.to_text(value, "it", keep)
    return plain_values.from_text(text, kept.__getitem__)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        1 << 80,
        0.1,
        1e-320,
        -0.0,
        math.inf,
        "text",
        [],
        (1, [2.5, (None,)]),
        {"betas": (0.9, 0.95), 3: {}},
        Counter({30: 1, 60: 2}),
    ],
    ids=str,
)
def test_plain_values_are_the_same_with_their_types(value: Any) -> None:
    found = there_and_back(value)
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_nan_numpy_and_tensors() -> None:
    assert math.isnan(there_and_back([math.nan])[0])
    assert there_and_back(np.float64(0.1)) == 0.1
    rate = torch.tensor(0.25)
    found = there_and_back([{"lr": rate, "sizes": [rate + 1]}])
    assert found[0]["lr"] is rate
    assert found[0]["sizes"][0].item() == 1.25


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"seen": {1}}, r"it\['seen'\] is a set"),
        ([0, object()], r"it\[1\] is a object"),
        ({"a": {(1, 2): 3}}, r"it\['a'\] has a key of type tuple"),
        (lambda: 0, "it is a function"),
    ],
)
def test_what_has_no_text_is_named_by_its_path(value: Any, said: str) -> None:
    with pytest.raises(PipesvcError, match=said):
        there_and_back(value)


@pytest.mark.parametrize("tree", [["set", 1], [], ["tensor", "0"], {"a": 1}, ["dict", [1]]], ids=str)
def test_text_that_was_not_written_here_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"stands for nothing|unpack"):
        plain_values.from_text(json.dumps(tree), lambda number: torch.zeros(()))
