"""What one stage of a given partition costs: the layers' costs summed up for the device that holds them.

Simulator and choice of schedule ask about stages, never about layers, and a test can write a stage down where it would
have to invent layers. Units are seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipesvc.core.actions import ActionKind
from pipesvc.core.costs import Costs
from pipesvc.core.flow import PARAMETER, Flow, gradient_transfers, transfers
from pipesvc.core.ties import Pair, Tie, copy_bytes, copy_gradient_bytes, gradient_chain, ties_of_flow, ties_of_layers


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCost:
    """One stage on its device. Times and activation, output and gradient bytes are of one micro-batch."""

    worker: str
    device: str = "cpu"  # torch's name on that worker
    memory_bytes: int = 0  # of the device, for all its stages; 0: not limited
    forward_s: float
    backward_s: float  # inputs and weights together
    input_backward_s: float | None = None  # of a split backward; None: half of backward_s
    weight_backward_s: float | None = None
    update_s: float = 0.0  # once a step
    norm_s: float = 0.0  # once a step, where stages decide together
    decide_s: float = 0.0  # the same, on stage 0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    buffer_bytes: int = 0
    activation_bytes: int = 0  # kept from forward to backward
    output_bytes: int = 0  # to the next stage
    output_gradient_bytes: int = 0  # back from it
    # The two above are those of a chain. In a flow each stage says whom it sends what: stage -> bytes.
    sends: Mapping[int, int] | None = None
    returns: Mapping[int, int] | None = None  # gradients, to earlier stages
    # The same in coded form, which is what links are busy with; None: nothing is coded.
    coded_sends: Mapping[int, int] | None = None
    coded_returns: Mapping[int, int] | None = None

    @property
    def place(self) -> str:
        """Worker and device, as a strategy's placement writes them."""
        return f"{self.worker}/{self.device}"

    def seconds(self, kind: ActionKind) -> float:
        """How long an action of this kind computes."""
        half_s = self.backward_s / 2
        match kind:
            case ActionKind.FORWARD:
                return self.forward_s
            case ActionKind.BACKWARD:
                return self.backward_s
            case ActionKind.INPUT_BACKWARD:
                return half_s if self.input_backward_s is None else self.input_backward_s
            case ActionKind.WEIGHT_BACKWARD:
                return half_s if self.weight_backward_s is None else self.weight_backward_s
            case ActionKind.NORM:
                return self.norm_s
            case ActionKind.DECIDE:
                return self.decide_s
            case ActionKind.UPDATE:
                return self.update_s


def stage_costs(costs: Costs, *, boundaries: Sequence[int], devices: Sequence[int]) -> tuple[StageCost, ...]:
    """The stages of a partition: `boundaries` has the first layer of each stage after the first, `devices` the index
    in `costs.devices` of each stage's device.

    Of a parameter that several layers or units share, the first one has measured gradient and optimizer state; a copy
    on another stage is its weights and a gradient.
    """
    edges = [0, *boundaries, len(costs.layers)]
    ends, flow = edges[1:], costs.flow
    ties = ties_of_flow(flow, ends) if flow else ties_of_layers([layer.shared for layer in costs.layers], ends)
    stages = [
        _stage_cost(costs, edges[index], edges[index + 1], device_index) for index, device_index in enumerate(devices)
    ]
    stages = [
        replace(
            stage,
            weight_bytes=stage.weight_bytes + copy_bytes(ties, index),
            gradient_bytes=stage.gradient_bytes + copy_gradient_bytes(ties, index),
        )
        for index, stage in enumerate(stages)
    ]
    if flow is not None:
        return _in_flow(stages, flow, ends)
    return _with_ties(stages, ties) if ties else tuple(stages)


def outputs_between(stages: Sequence[StageCost]) -> dict[Pair, int]:
    """(producer, consumer) -> bytes of one micro-batch."""
    found: dict[Pair, int] = {}
    for index, stage in enumerate(stages):
        if stage.sends is not None:
            found |= {(index, consumer): num_bytes for consumer, num_bytes in stage.sends.items()}
        elif index + 1 < len(stages):
            found[index, index + 1] = stage.output_bytes
    return found


def gradients_between(stages: Sequence[StageCost]) -> dict[Pair, int]:
    """(sender, receiver) -> bytes of one micro-batch."""
    found: dict[Pair, int] = {}
    for index, stage in enumerate(stages):
        if stage.returns is not None:
            found |= {(index, receiver): num_bytes for receiver, num_bytes in stage.returns.items()}
        elif index:
            found[index, index - 1] = stages[index - 1].output_gradient_bytes
    return found


def outputs_on_links(stages: Sequence[StageCost]) -> dict[Pair, int]:
    """(producer, consumer) -> bytes of one micro-batch, coded where links have a codec."""
    return outputs_between(stages) | _pairs(stage.coded_sends for stage in stages)


def gradients_on_links(stages: Sequence[StageCost]) -> dict[Pair, int]:
    """(sender, receiver) -> likewise."""
    return gradients_between(stages) | _pairs(stage.coded_returns for stage in stages)


def _pairs(by_stage: Iterable[Mapping[int, int] | None]) -> dict[Pair, int]:
    return {
        (index, other): num_bytes for index, found in enumerate(by_stage) for other, num_bytes in (found or {}).items()
    }


def _stage_cost(costs: Costs, first: int, end: int, device_index: int) -> StageCost:
    device, held = costs.devices[device_index], costs.layers[first:end]
    is_last = end == len(costs.layers)
    times = device.times
    backward_s = sum(times.backward_s[first:end])
    return StageCost(
        worker=device.worker,
        device=device.device,
        memory_bytes=device.memory_bytes,
        forward_s=sum((*times.forward_s[first:end], *times.skip_s[first : first + 1])),
        backward_s=backward_s,
        input_backward_s=sum(times.input_backward_s[first:end]) if times.input_backward_s else backward_s,
        weight_backward_s=sum(times.weight_backward_s[first:end]),
        update_s=sum(times.update_s[first:end]),
        weight_bytes=sum(layer.parameter_bytes for layer in held),
        gradient_bytes=sum(layer.gradient_bytes for layer in held),
        optimizer_bytes=sum(layer.optimizer_bytes for layer in held),
        buffer_bytes=sum(layer.buffer_bytes for layer in held),
        activation_bytes=sum(layer.activation_bytes for layer in held),
        output_bytes=0 if is_last else held[-1].output_bytes,
        output_gradient_bytes=0 if is_last else held[-1].output_gradient_bytes,
    )


def _in_flow(stages: Sequence[StageCost], flow: Flow, ends: Sequence[int]) -> tuple[StageCost, ...]:
    """Values go straight from their maker to each user, gradients from a user to the one before it."""
    sizes = {value.key: value.num_bytes for value in flow.values}
    sizes |= {PARAMETER + each.name: each.num_bytes for each in flow.shared}
    outputs, gradients = transfers(flow, ends), gradient_transfers(flow, ends)
    return _with_ways(
        stages,
        {pair: sum(sizes[key] for key in keys) for pair, keys in outputs.items()},
        {pair: sum(sizes[key] for key in keys) for pair, keys in gradients.items()},
    )


def _with_ties(stages: Sequence[StageCost], ties: Sequence[Tie]) -> tuple[StageCost, ...]:
    """Beside what neighbours exchange, gradients of shared parameters go down to their owners."""
    sizes = {tie.name: tie.num_bytes for tie in ties}
    gradients = gradients_between(stages)
    for pair, names in gradient_chain(ties).items():
        gradients[pair] = gradients.get(pair, 0) + sum(sizes[name] for name in names)
    return _with_ways(stages, outputs_between(stages), gradients)


def _with_ways(
    stages: Sequence[StageCost], outputs: Mapping[Pair, int], gradients: Mapping[Pair, int]
) -> tuple[StageCost, ...]:
    return tuple(
        replace(
            stage,
            output_bytes=0,
            output_gradient_bytes=0,
            sends={consumer: num_bytes for (sender, consumer), num_bytes in outputs.items() if sender == index},
            returns={receiver: num_bytes for (sender, receiver), num_bytes in gradients.items() if sender == index},
        )
        for index, stage in enumerate(stages)
    )
