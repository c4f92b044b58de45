"""The bytes that go over each cut in coded form.

Memory holds decoded tensors, so a stage's outputs keep their own sizes there; what a link is busy with is counted here
beside them. Where a pair of stages has a codec of its own, the search for a cut, which does not know yet which stages
meet at a boundary, goes by that of all others; simulator and reports know better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pipesvc.core.coding import Coding, TypedBytes
from pipesvc.core.costs import Costs
from pipesvc.core.flow import PARAMETER, Flow, gradient_transfers, transfers
from pipesvc.core.stage_costs import StageCost
from pipesvc.core.ties import Pair, gradient_chain, ties_of_layers

# Of what is known by its size alone: parameters that several stages use.
_PARAMETER_TYPE: Final = "float32"

Sizes = Mapping[Pair, Sequence[TypedBytes]]


def with_codecs(
    stages: Sequence[StageCost], costs: Costs, boundaries: Sequence[int], coding: Coding
) -> tuple[StageCost, ...]:
    """The stages that these boundaries make, which say besides what they send in coded form."""
    if coding.is_none:
        return tuple(stages)
    ends, flow = [*boundaries, len(costs.layers)], costs.flow
    outputs, gradients = _of_flow(flow, ends) if flow is not None else _of_list(costs, ends)
    return tuple(
        replace(stage, coded_sends=_sent(index, outputs, coding), coded_returns=_sent(index, gradients, coding))
        for index, stage in enumerate(stages)
    )


def crossing_bytes(costs: Costs, coding: Coding) -> list[tuple[int, int]]:
    """What a boundary behind each layer would send on, and back."""
    if coding.is_none:
        return [(layer.output_bytes, layer.output_gradient_bytes) for layer in costs.layers]
    sizes = [(layer.outputs, layer.output_gradients) for layer in costs.layers]
    if (flow := costs.flow) is not None:
        sizes = _over_each_cut(flow)
    general = Coding(coding.others)
    return [
        (
            general.bytes_between((0, 1), outputs or [TypedBytes("", layer.output_bytes)]),
            general.bytes_between((1, 0), gradients or [TypedBytes("", layer.output_gradient_bytes)]),
        )
        for layer, (outputs, gradients) in zip(costs.layers, sizes, strict=True)
    ]


def _sent(stage: int, sizes: Sizes, coding: Coding) -> dict[int, int]:
    return {pair[1]: coding.bytes_between(pair, tensors) for pair, tensors in sizes.items() if pair[0] == stage}


def _of_list(costs: Costs, ends: Sequence[int]) -> tuple[Sizes, Sizes]:
    """A layer of costs that do not tell types (an earlier version's, or written by hand) has one that is not coded."""
    outputs: dict[Pair, Sequence[TypedBytes]] = {}
    gradients: dict[Pair, Sequence[TypedBytes]] = {}
    for stage, end in enumerate(ends[:-1]):
        last = costs.layers[end - 1]
        outputs[stage, stage + 1] = last.outputs or [TypedBytes("", last.output_bytes)]
        gradients[stage + 1, stage] = last.output_gradients or [TypedBytes("", last.output_gradient_bytes)]
    ties = ties_of_layers([layer.shared for layer in costs.layers], ends)
    sizes = {tie.name: TypedBytes(_PARAMETER_TYPE, tie.num_bytes) for tie in ties}
    for pair, names in gradient_chain(ties).items():
        gradients[pair] = [*gradients.get(pair, ()), *(sizes[name] for name in names)]
    return outputs, gradients


def _of_flow(flow: Flow, ends: Sequence[int]) -> tuple[Sizes, Sizes]:
    sizes = {value.key: TypedBytes(value.dtype, value.num_bytes) for value in flow.values}
    sizes |= {PARAMETER + each.name: TypedBytes(_PARAMETER_TYPE, each.num_bytes) for each in flow.shared}
    outputs, gradients = (
        {pair: [sizes[key] for key in keys] for pair, keys in found.items()}
        for found in (transfers(flow, ends), gradient_transfers(flow, ends))
    )
    return outputs, gradients


def _over_each_cut(flow: Flow) -> list[tuple[tuple[TypedBytes, ...], tuple[TypedBytes, ...]]]:
    """As `flow.crossing_bytes` counts, by type."""
    outputs: list[Counter[str]] = [Counter() for _ in flow.units]
    gradients: list[Counter[str]] = [Counter() for _ in flow.units]
    for value in flow.values:
        for unit in range(max(value.producer, 0), value.users[-1]):
            outputs[unit][value.dtype] += value.num_bytes
            gradients[unit][value.dtype] += value.num_bytes * value.is_differentiable
    for each in flow.shared:
        users = flow.parameters[each.name]
        for unit in range(max(users[0], 0), users[-1]):
            gradients[unit][_PARAMETER_TYPE] += each.num_bytes * each.is_trained
    return [(_typed(ahead), _typed(back)) for ahead, back in zip(outputs, gradients, strict=True)]


def _typed(found: Mapping[str, int]) -> tuple[TypedBytes, ...]:
    return tuple(TypedBytes(dtype, num_bytes) for dtype, num_bytes in found.items())
