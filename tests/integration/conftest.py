"""One cluster of real processes for all modules that do not harm it: starting it costs seconds, sharing costs nothing.

Modules that kill, stop or measure processes have clusters of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pipesvc


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pipesvc.Client]:
    """Four CPU workers with one thread each."""
    state_dir: Path = tmp_path_factory.mktemp("state")
    with pipesvc.LocalCluster(num_workers=4, num_threads=1, state_dir=state_dir) as client:
        yield client
