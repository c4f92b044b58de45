"""Models of the hub are built from their code alone, so the hub is never asked.

Its library decides that once, as it is imported. So the modules that import it do it in here, and whoever imports them
has it, the workers of a run too; the environment of other tests and of what they start is left as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest.mock import patch

VARIABLE = "HF_HUB_OFFLINE"
CONSTANTS = "huggingface_hub.constants"


@contextmanager
def offline() -> Iterator[None]:
    """ImportError where somebody has imported the library before: it would ask."""
    with patch.dict(os.environ, {VARIABLE: "1"}):
        if not import_module(CONSTANTS).HF_HUB_OFFLINE:
            raise ImportError("huggingface_hub was imported before, not in `offline`, so it would ask the hub")
        yield
