"""One cluster of real processes for all modules that do not harm it: starting it costs seconds, sharing costs nothing.

Modules that kill, stop or measure processes have clusters of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pipesvc


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the coordinator of `cluster`."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def cluster(state_dir: Path) -> Iterator[pipesvc.Client]:
    """Four CPU workers with one thread each."""
    with pipesvc.LocalCluster(num_workers=4, num_threads=1, state_dir=state_dir) as client:
        yield client
