"""Where a list of layers is cut into stages: by marks, by given boundaries, or evenly.

Apart from placement, because the cut depends on the model alone, and the same cut is asked for by tests, plans and
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pipesvc.core import marks
from pipesvc.core.plan import LayerInfo, StrategySettings
from pipesvc.errors import ErrorCode, LayersError, PipesvcError

# At each end of a long list of names.
_SHOWN_NAMES: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCut:
    """A stage before it has a place."""

    label: str
    first_layer: int
    end_layer: int


def cut(settings: StrategySettings, layers: Sequence[LayerInfo], default_num_stages: int) -> tuple[StageCut, ...]:
    """The stages of these layers in order; together they hold every layer once, and none is empty."""
    if not layers:
        raise PipesvcError(ErrorCode.INVALID_JOB, "the model has no layers", advice="Return at least one module.")
    if not settings.is_pipelined:
        return _numbered([], len(layers))
    if any(layer.mark for layer in layers):
        if settings.boundaries or settings.num_stages:
            asked = "boundaries" if settings.boundaries else "num_stages"
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"the model has device_guard marks and the strategy has {asked}",
                advice=f"Use one of the two: remove the marks or {asked}.",
            )
        return _by_marks(layers)
    if settings.boundaries:
        return _by_boundaries(settings, layers)
    return _evenly(settings.num_stages or _most(default_num_stages, layers), len(layers))


def is_uncut(settings: StrategySettings, layers: Sequence[LayerInfo], default_num_stages: int) -> bool:
    """Whether one stage is asked for, also of layers whose order is not known, so that they could not be cut."""
    if not settings.is_pipelined:
        return True
    marks = {layer.mark for layer in layers if layer.mark}
    num_stages = settings.num_stages or len(marks) or _most(default_num_stages, layers)
    return num_stages == 1 and not settings.boundaries


def _most(num_stages: int, layers: Sequence[LayerInfo]) -> int:
    """As many, as far as there are layers for them."""
    return max(1, min(num_stages, len(layers)))


def _numbered(boundaries: Sequence[int], num_layers: int) -> tuple[StageCut, ...]:
    edges = [0, *boundaries, num_layers]
    return tuple(
        StageCut(label=f"stage:{index}", first_layer=edges[index], end_layer=edges[index + 1])
        for index in range(len(edges) - 1)
    )


def _by_marks(layers: Sequence[LayerInfo]) -> tuple[StageCut, ...]:
    """An unmarked layer joins the stage before it; leading unmarked layers join the first stage."""
    starts: list[tuple[str, int]] = []
    for index, layer in enumerate(layers):
        if not layer.mark or (starts and layer.mark == starts[-1][0]):
            continue
        marks.parse(layer.mark)
        if any(layer.mark == label for label, _ in starts):
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"mark {layer.mark!r} comes back at layer {index} ({layer.name}) after {starts[-1][0]!r}",
                advice="A mark names one run of layers: give the later ones a mark of their own, "
                'such as "cpu:second", and place both on one worker if you like.',
            )
        starts.append((layer.mark, index if starts else 0))
    ends = [first for _, first in starts[1:]] + [len(layers)]
    return tuple(
        StageCut(label=label, first_layer=first, end_layer=end)
        for (label, first), end in zip(starts, ends, strict=True)
    )


def _by_boundaries(settings: StrategySettings, layers: Sequence[LayerInfo]) -> tuple[StageCut, ...]:
    num_layers = len(layers)
    names = [layer.name for layer in layers]
    boundaries = [_index_of(each, names) if isinstance(each, str) else each for each in settings.boundaries]
    edges = [0, *boundaries, num_layers]
    if any(after <= before for before, after in pairwise(edges)):
        raise LayersError(
            ErrorCode.INVALID_PLAN,
            f"boundaries {list(settings.boundaries)} do not cut {num_layers} layers into non-empty stages",
            advice=f"Give ascending indices from 1 to {num_layers - 1}, or names in this order: the first layer of "
            "each stage but the first.",
        )
    if settings.num_stages not in (0, len(settings.boundaries) + 1):
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"num_stages={settings.num_stages} contradicts boundaries {list(settings.boundaries)}, "
            f"which make {len(settings.boundaries) + 1} stages",
            advice="Leave num_stages out.",
        )
    return _numbered(boundaries, num_layers)


def _index_of(name: str, names: Sequence[str]) -> int:
    if name in names:
        return names.index(name)
    outer = next((each for each in names if name.startswith(f"{each}.")), "")
    inside = f": it lies inside layer {outer!r}, which is one piece" if outer else ""
    shown = names if len(names) <= 2 * _SHOWN_NAMES else [*names[:_SHOWN_NAMES], "...", *names[-_SHOWN_NAMES:]]
    raise LayersError(
        ErrorCode.INVALID_PLAN,
        f"the boundary {name!r} is not the name of a layer{inside}",
        advice=f"The layers are {', '.join(shown)}.",
    )


def _evenly(num_stages: int, num_layers: int) -> tuple[StageCut, ...]:
    """As equal as can be, later stages the larger ones: early stages hold more micro-batches."""
    if not 1 <= num_stages <= num_layers:
        raise LayersError(
            ErrorCode.INVALID_PLAN,
            f"{num_layers} layers cannot fill {num_stages} stages",
            advice=f"Use num_stages of 1 to {num_layers}, or leave it out for one per worker.",
        )
    return _numbered([index * num_layers // num_stages for index in range(1, num_stages)], num_layers)
