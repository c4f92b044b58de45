"""The cuts that a user asks for by name, without times: by count, by parameters, by class of layer.

They are apart from the search because they know nothing of devices. Each gives the boundaries for a number of stages;
the search then finds the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pipesvc.core.costs import LayerCost
from pipesvc.core.plan import LayerInfo, StrategySettings
from pipesvc.core.stages import cut
from pipesvc.core.type_weights import bad_method, type_parts
from pipesvc.errors import ErrorCode, LayersError, PipesvcError

AUTO: Final = "auto"


def edges_of(
    method: str, layers: Sequence[LayerCost], num_stages: int, may_cut: npt.NDArray[np.bool_], must_cut: Sequence[int]
) -> tuple[int, ...]:
    """0, the first layer of each later stage, and the number of layers, by a method other than `auto`.

    "uniform" gives equal counts, later stages the larger, and asks nobody. The others choose among the boundaries of
    `may_cut` [L + 1] and take all of `must_cut`. Raises INVALID_PLAN for an unknown method, a weight that cannot be
    read, and where the layers do not fill so many stages.
    """
    if method == "uniform":
        return stage_edges(StrategySettings(num_stages=num_stages), layers, num_stages)
    if method == "parameters":
        weights = [float(layer.parameter_bytes) for layer in layers]
    elif method.startswith("type:"):
        weights = type_weights(method, layers)
    else:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"unknown method {method!r} to cut the layers",
            advice='Choose "auto", "uniform", "parameters", "type:REGEX[:WEIGHT]|...", or give boundaries.',
        )
    return balanced(weights, num_stages, may_cut, must_cut)


def stage_edges(settings: StrategySettings, layers: Sequence[LayerCost], num_workers: int) -> tuple[int, ...]:
    """The edges of the stages that `stages.cut` makes of these settings."""
    stages = cut(settings, layer_infos(layers), num_workers)
    return (0, *(stage.end_layer for stage in stages))


def layer_infos(layers: Sequence[LayerCost]) -> list[LayerInfo]:
    return [
        LayerInfo(
            name=layer.name,
            type=layer.type,
            mark=layer.mark,
            parameter_bytes=layer.parameter_bytes,
            buffer_bytes=layer.buffer_bytes,
            gradient_bytes=layer.gradient_bytes,
            shared=layer.shared,
        )
        for layer in layers
    ]


def type_weights(method: str, layers: Sequence[LayerCost]) -> list[float]:
    """The weight of each layer: that of the first part whose expression is found in its type; 0 where none is."""
    parts = type_parts(method)
    weights = [next((weight for regex, weight in parts if regex.search(layer.type)), 0.0) for layer in layers]
    if not any(weights):
        types = ", ".join(dict.fromkeys(layer.type or "(unknown)" for layer in layers))
        raise bad_method(method, f"no layer has a weight; their types are {types}", LayersError)
    return weights


def balanced(
    weights: Sequence[float], num_stages: int, may_cut: npt.NDArray[np.bool_], must_cut: Sequence[int]
) -> tuple[int, ...]:
    """The contiguous cut into non-empty stages whose heaviest is lightest, and of those the most even.

    Exact: Bellman's program for the heaviest stage, then the same for the smallest sum of squares below it. Of equal
    cuts the one whose early stages are smaller wins: they hold more micro-batches.
    """
    num_layers = len(weights)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    forced = np.array([*must_cut, num_layers])
    first, end = np.arange(num_layers + 1)[:, None], np.arange(num_layers + 1)[None, :]
    last_end = forced[np.minimum(np.searchsorted(forced, first, "right"), len(forced) - 1)]
    is_allowed = (end > first) & (end <= last_end) & may_cut[:, None] & may_cut[None, :]
    weight = np.where(is_allowed, sums[end] - sums[first], np.inf)
    heaviest = np.where(np.arange(num_layers + 1) == num_layers, 0.0, np.inf)
    for _ in range(min(num_stages, num_layers + 1)):  # one more than layers already fills no stage
        heaviest = np.maximum(weight, heaviest).min(axis=1)
    if not np.isfinite(heaviest[0]):
        raise LayersError(
            ErrorCode.INVALID_PLAN,
            f"{num_layers} layers cannot fill {num_stages} stages: only {int(may_cut[1:-1].sum())} boundaries between "
            f"them are allowed, and {len(must_cut)} must be there",
            advice="Ask for fewer stages, or release a tie or a boundary.",
        )
    square = np.where(weight <= heaviest[0] * (1 + 1e-12), weight, np.inf) ** 2
    best = [np.where(np.arange(num_layers + 1) == num_layers, 0.0, np.inf)]
    for _ in range(num_stages):
        best.append((square + best[-1]).min(axis=1))
    edges = [0]
    for left in range(num_stages - 1, -1, -1):
        edges.append(int((square[edges[-1]] + best[left]).argmin()))
    return tuple(edges)
