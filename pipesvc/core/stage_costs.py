"""What one stage of a given partition costs: the layers' costs summed up for the device that holds them.

Simulator and choice of schedule ask about stages, never about layers, and a test can write a stage down where it would
have to invent layers. Units are seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipesvc.core.actions import ActionKind
from pipesvc.core.costs import Costs
from pipesvc.core.ties import copy_bytes, ties_of_layers


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

    Of a parameter that several layers share, each layer has measured gradient and optimizer state, so for a stage that
    does not own it they are more than it will hold.
    """
    edges = [0, *boundaries, len(costs.layers)]
    ties = ties_of_layers([layer.shared for layer in costs.layers], edges[1:])
    stages = (
        _stage_cost(costs, edges[index], edges[index + 1], device_index) for index, device_index in enumerate(devices)
    )
    return tuple(
        replace(stage, weight_bytes=stage.weight_bytes + copy_bytes(ties, index)) for index, stage in enumerate(stages)
    )


def _stage_cost(costs: Costs, first: int, end: int, device_index: int) -> StageCost:
    device, held = costs.devices[device_index], costs.layers[first:end]
    is_last = end == len(costs.layers)
    backward_s = sum(device.times.backward_s[first:end])
    return StageCost(
        worker=device.worker,
        device=device.device,
        memory_bytes=device.memory_bytes,
        forward_s=sum(device.times.forward_s[first:end]),
        backward_s=backward_s,
        # Executors do not split the backward yet: I is the whole of it, and W nothing.
        input_backward_s=backward_s,
        weight_backward_s=0.0,
        update_s=sum(device.times.update_s[first:end]),
        weight_bytes=sum(layer.parameter_bytes for layer in held),
        gradient_bytes=sum(layer.gradient_bytes for layer in held),
        optimizer_bytes=sum(layer.optimizer_bytes for layer in held),
        buffer_bytes=sum(layer.buffer_bytes for layer in held),
        activation_bytes=sum(layer.activation_bytes for layer in held),
        output_bytes=0 if is_last else held[-1].output_bytes,
        output_gradient_bytes=0 if is_last else held[-1].output_gradient_bytes,
    )
