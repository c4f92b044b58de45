"""Unit tests are judged by what they find, not by how fast a loaded machine finds it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")


@pytest.fixture(autouse=True, scope="session")
def cuda_is_up() -> None:
    """Where there is a GPU, a process's first backward starts the driver, which keeps a socket: no leak of a test."""
    if torch.cuda.is_available():
        torch.autograd.backward(torch.ones(1, requires_grad=True).sum())
