"""A profile as tables for people. Pure: values in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pipesvc.client.profiling import Profile
from pipesvc.client.report import table
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LinkCost
from pipesvc.core.memory import bytes_text
from pipesvc.core.schedule_search import seconds_text

_LAYER_HEADER = ("LAYER", "TYPE", "PARAMETERS", "ACTIVATIONS", "OUTPUT")
_MEMORY_HEADER = ("WEIGHTS", "GRADIENTS", "OPTIMIZER", "BUFFERS", "ACTIVATIONS")
_LINK_HEADER = ("FROM", "TO", "WAY", "LATENCY", "BANDWIDTH")


def profile_text(profile: Profile) -> str:
    """Layers with their bytes and their forward, backward and update times on each device; sums; links."""
    return "\n".join(_lines(profile))


def _lines(profile: Profile) -> Iterator[str]:
    costs = profile.costs
    num_new = profile.num_devices_measured + profile.num_links_measured
    new = f"measured now: {profile.num_devices_measured} devices, {profile.num_links_measured} links"
    yield f"micro-batch of {costs.micro_batch_rows} rows; {new if num_new else 'measured before (--fresh: again)'}"
    places = [f"{device.worker}/{device.device} F B U" for device in costs.devices]
    rows = [_layer_row(costs, index) for index in range(len(costs.layers))]
    yield table((*_LAYER_HEADER, *places), [*rows, _sum_row(costs)])
    yield "the whole model, activations of one micro-batch:"
    yield table(_MEMORY_HEADER, [_memory_row(costs.layers)])
    if costs.links:
        yield table(_LINK_HEADER, [_link_row(pair, link) for pair, link in costs.links.items()])


def _layer_row(costs: Costs, index: int) -> tuple[str, ...]:
    layer = costs.layers[index]
    return (
        f"{layer.name} ({layer.mark})" if layer.mark else layer.name,
        layer.type,
        bytes_text(layer.parameter_bytes),
        bytes_text(layer.activation_bytes),
        bytes_text(layer.output_bytes),
        *(_times_text(device, slice(index, index + 1)) for device in costs.devices),
    )


def _sum_row(costs: Costs) -> tuple[str, ...]:
    return (
        "all",
        "",
        bytes_text(sum(layer.parameter_bytes for layer in costs.layers)),
        bytes_text(sum(layer.activation_bytes for layer in costs.layers)),
        "",
        *(_times_text(device, slice(None)) for device in costs.devices),
    )


def _times_text(device: DeviceCost, layers: slice) -> str:
    times = device.times
    return ", ".join(seconds_text(sum(each[layers])) for each in (times.forward_s, times.backward_s, times.update_s))


def _memory_row(layers: Sequence[LayerCost]) -> tuple[str, ...]:
    return (
        bytes_text(sum(layer.parameter_bytes for layer in layers)),
        bytes_text(sum(layer.gradient_bytes for layer in layers)),
        bytes_text(sum(layer.optimizer_bytes for layer in layers)),
        bytes_text(sum(layer.buffer_bytes for layer in layers)),
        bytes_text(sum(layer.activation_bytes for layer in layers)),
    )


def _link_row(pair: tuple[str, str], link: LinkCost) -> tuple[str, ...]:
    if not link.is_open:
        return (*pair, "none", "-", "-")
    bandwidth = "no bound" if math.isinf(link.bytes_per_s) else f"{bytes_text(round(link.bytes_per_s))}/s"
    return (*pair, link.way or "not known", seconds_text(link.latency_s), bandwidth)
