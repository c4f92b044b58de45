"""A model whose shape is in a file, which no digest of its code sees."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from torch import nn

from tests.integration import jobs


def build(path: str) -> nn.Sequential:
    """Linear layers; the file has the width of each one's output."""
    widths = json.loads(Path(path).read_text())
    return nn.Sequential(*(nn.Linear(here, there) for here, there in pairwise([jobs.WIDTH, *widths])))
