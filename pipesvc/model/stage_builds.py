"""A model that is given as one builder for each stage: a list of layers, each made by a function of its own.

For what no skeleton holds and no replay follows. No executor makes anything of another stage, not even shapes, so a
builder may do what it likes. That is also why no stream of numbers can run through all of them: builder `i` begins with
`torch.manual_seed(seed + i)`, and a plain loop that wants the same weights does just that before each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Build = Callable[[], object]


class StageBuilds:
    """Called, it makes all of them, as a list of layers; what they draw then counts for nothing."""

    def __init__(self, builds: Sequence[Build]) -> None:
        self.builds = tuple(builds)

    def __call__(self) -> list[object]:
        return [build() for build in self.builds]
