"""Four hosts for the tests of this folder, where the machine can have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.cluster import Cluster
from tests.hosts.namespaces import Network, missing


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := missing():
        pytest.skip(reason)
    with Network("c", "a", "b", "d") as network:
        yield network


@pytest.fixture
def cluster(network: Network, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(network, tmp_path) as cluster:
        yield cluster
