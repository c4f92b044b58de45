"""What layers, devices and links cost, measured or estimated: the input of partitioner, simulator and choice.

Units are seconds and bytes; rows are those of one micro-batch. Apart from the plan, because costs are known before
there is one, and the same costs are asked about many plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isinf

from pipesvc.core import flow_json
from pipesvc.core.coding import TypedBytes
from pipesvc.core.flow import Flow
from pipesvc.core.layer_info import SharedParameter


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCost:
    """What one layer needs wherever it is. Bytes per micro-batch where nothing else is said."""

    name: str
    type: str = ""
    mark: str = ""  # the device_guard label, empty if unmarked
    parameter_bytes: int = 0  # once
    gradient_bytes: int = 0  # once; 0 where nothing is trained
    optimizer_bytes: int = 0  # once: the optimizer's state
    buffer_bytes: int = 0  # once
    activation_bytes: int = 0  # kept from forward to backward
    output_bytes: int = 0  # crosses the link if a boundary follows, skips included
    output_gradient_bytes: int = 0  # crosses it backwards
    # The two above by type; empty: not known, or to be had from the flow.
    outputs: tuple[TypedBytes, ...] = ()
    output_gradients: tuple[TypedBytes, ...] = ()
    shared: tuple[SharedParameter, ...] = ()  # parameters that another layer holds, too


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTimes:
    """How long each layer takes on one kind of device: one entry per layer."""

    forward_s: tuple[float, ...]  # one micro-batch
    backward_s: tuple[float, ...]  # one micro-batch: inputs and weights together
    update_s: tuple[float, ...]  # once a step
    # Of a module: how long a stage that begins with the unit replays those before it, for one micro-batch.
    skip_s: tuple[float, ...] = ()
    # One micro-batch, of a backward that is split; empty: not measured, and I counts as the whole.
    input_backward_s: tuple[float, ...] = ()
    weight_backward_s: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCost:
    """One place for a stage. Devices of equal `times` and memory are the same to a planner."""

    worker: str
    device: str  # torch's name on that worker: "cpu", "cuda:0"
    times: LayerTimes
    memory_bytes: int = 0  # 0: not limited


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkCost:
    """The way from one worker to another; an infinite latency says that there is none."""

    latency_s: float = 0.0
    bytes_per_s: float = float("inf")
    way: str = ""  # "same host" or "gRPC", as it was measured; empty: not known

    @property
    def is_open(self) -> bool:
        return not isinf(self.latency_s)

    def hop_s(self, num_bytes: int) -> float:
        """How long a parcel of so many bytes takes from its sender's end of compute to its reader."""
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """All that a planner is told. A pair of workers without an entry in `links` has `default_link`."""

    layers: tuple[LayerCost, ...]
    devices: tuple[DeviceCost, ...]
    links: Mapping[tuple[str, str], LinkCost] = field(default_factory=dict)
    default_link: LinkCost = field(default_factory=LinkCost)
    micro_batch_rows: int = 0  # of the micro-batch that was measured; 0: not measured
    flow_json: str = ""  # of a module that is cut by replay (`flow_json.to_json`); its units are the layers

    @property
    def flow(self) -> Flow | None:
        """None: the layers are a list."""
        return flow_json.known(self.flow_json) if self.flow_json else None

    def link(self, sender: str, receiver: str) -> LinkCost:
        """Within one worker nothing is sent."""
        return LinkCost() if sender == receiver else self.links.get((sender, receiver), self.default_link)
