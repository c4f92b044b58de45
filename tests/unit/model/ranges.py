"""What inspector and executor ask of a model function in several calls, in one, for the tests of building."""

from __future__ import annotations

from pipesvc.core.layer_info import LayerInfo
from pipesvc.model.sequence import NamedLayer
from pipesvc.model.skeleton import Build, build_layers, inspect_parts, layer_infos


def inspect_layers(build: Build, *, is_whole: bool = False) -> list[LayerInfo]:
    return layer_infos(inspect_parts(build, is_whole=is_whole))


def build_range(build: Build, seed: int, first: int, end: int) -> list[NamedLayer]:
    """Layers `first` up to `end` (exclusive), real; the others were on shapes."""
    return build_layers(build, seed, range(first, end))[first:end]
