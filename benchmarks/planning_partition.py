"""How long the partitioner takes: 1,000 layers on 64 equal devices, and 48 layers on 12 unlike ones.

Both are whole calls of `partition`, runner-up included, on costs that are made here and kept the same. A part of
`benchmarks.planning`.
"""

from __future__ import annotations

import random
import time

from benchmarks.results import Result, result
from benchmarks.rounds import spread
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.partition import partition


def equal_devices(num_layers: int, num_devices: int) -> Costs:
    """Layers of unequal times on devices that are all the same, with memory that counts."""
    rng = random.Random(0)
    times = _times([rng.uniform(0.5e-3, 2e-3) for _ in range(num_layers)])
    devices = tuple(
        DeviceCost(worker=f"worker{index}", device="cuda:0", times=times, memory_bytes=80 * 10**9)
        for index in range(num_devices)
    )
    return Costs(
        layers=_layers(num_layers, rng), devices=devices, default_link=LinkCost(latency_s=1e-4, bytes_per_s=1e9)
    )


def unlike_devices(num_layers: int, num_devices: int) -> Costs:
    """Each device with its own speed, and each pair of workers with its own link."""
    rng = random.Random(0)
    layer_s = [rng.uniform(0.5e-3, 2e-3) for _ in range(num_layers)]
    devices = []
    for index in range(num_devices):
        speed = rng.uniform(0.5, 2.0)
        times = _times([each / speed * rng.uniform(0.9, 1.1) for each in layer_s])
        memory_bytes = rng.randrange(20, 80) * 10**9
        devices.append(DeviceCost(worker=f"worker{index}", device="cuda:0", times=times, memory_bytes=memory_bytes))
    names = [device.worker for device in devices]
    links = {
        (a, b): LinkCost(latency_s=rng.uniform(1e-4, 5e-4), bytes_per_s=rng.uniform(1e9, 3e9))
        for a in names
        for b in names
        if a != b
    }
    return Costs(layers=_layers(num_layers, rng), devices=tuple(devices), links=links)


def _times(layer_s: list[float]) -> LayerTimes:
    return LayerTimes(
        forward_s=tuple(layer_s),
        backward_s=tuple(2 * each for each in layer_s),
        update_s=tuple(each / 10 for each in layer_s),
    )


def _layers(num_layers: int, rng: random.Random) -> tuple[LayerCost, ...]:
    return tuple(
        LayerCost(
            name=f"layer{index}",
            parameter_bytes=rng.randrange(10**7, 10**8),
            gradient_bytes=10**8,
            optimizer_bytes=2 * 10**8,
            activation_bytes=10**7,
            output_bytes=10**6,
            output_gradient_bytes=10**6,
        )
        for index in range(num_layers)
    )


def figures(num_rounds: int, command: str) -> list[Result]:
    """Each the median of its rounds."""
    cases = (
        ("1,000 layers on 64 equal devices", equal_devices(1000, 64), 64, "value < 1"),
        ("48 layers on 12 unlike devices", unlike_devices(48, 12), 64, "value < 2"),
        # With fewer micro-batches the sum of the stages weighs more, and caps on the bottleneck prune less.
        ("48 layers on 12 unlike devices", unlike_devices(48, 12), 1, "value < 2"),
        ("48 layers on 12 unlike devices", unlike_devices(48, 12), 4, "value < 2"),
        ("48 layers on 12 unlike devices", unlike_devices(48, 12), 8, "value < 2"),
        ("48 layers on 12 unlike devices", unlike_devices(48, 12), 16, "value < 2"),
    )
    found = []
    for what, costs, num_micro_batches, aim in cases:
        taken_s = []
        for _ in range(num_rounds):
            start_s = time.perf_counter()
            partition(costs, num_micro_batches=num_micro_batches)
            taken_s.append(time.perf_counter() - start_s)
        figure = f"partition of {what}, {num_micro_batches} micro-batches"
        found.append(result(figure, spread(taken_s), unit="s", command=command, num_rounds=num_rounds, aim=aim))
    return found
