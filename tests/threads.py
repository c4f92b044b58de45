"""Kernels that split their sums over threads round in another order, so tests that compare bits have one thread.

A conftest that imports the fixture gives it to every test below its folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The number from before comes back, also where a test has set another one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
