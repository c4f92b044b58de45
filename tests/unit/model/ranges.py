"""The layers of one stage alone, as the tests of building ask for them."""

from __future__ import annotations

from pipesvc.model.sequence import NamedLayer
from pipesvc.model.skeleton import Build, build_layers


def build_range(build: Build, seed: int, first: int, end: int) -> list[NamedLayer]:
    """Layers `first` up to `end` (exclusive), real; the others were on shapes."""
    return build_layers(build, seed, range(first, end))[first:end]
