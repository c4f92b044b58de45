"""Looking at a model must not move the generators: the build that counts begins where the user's program left them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def same_random_state_after() -> Iterator[None]:
    """Of torch's CPU generator, of Python and of numpy's global one."""
    python, here = random.getstate(), torch.get_rng_state()
    numpy: Any = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(here)
        if numpy is not None:
            numpy.random.set_state(numpys)
