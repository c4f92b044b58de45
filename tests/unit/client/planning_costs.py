"""Costs, a crew and a job written by hand, for the tests of planning."""

from __future__ import annotations

from typing import Any

import torch

from pipesvc.client.job import DataSource, Job, Optimizer, Strategy
from pipesvc.client.planning import Crew
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.plan import WorkerInfo

MIB = 2**20
NUM_LAYERS = 6


def layers(marks: tuple[str, ...] = ()) -> tuple[LayerCost, ...]:
    """Each has 1 MiB of weights and gradients, 2 MiB of Adam's state, and sends 64 KiB."""
    return tuple(
        LayerCost(
            name=f"block{index}",
            type="Block",
            mark=marks[index] if marks else "",
            parameter_bytes=MIB,
            gradient_bytes=MIB,
            optimizer_bytes=2 * MIB,
            activation_bytes=MIB // 2,
            output_bytes=MIB // 16,
            output_gradient_bytes=MIB // 16,
        )
        for index in range(NUM_LAYERS)
    )


def device(
    worker: str, slowness: float = 1.0, *, device: str = "cpu", memory_bytes: int = 0, weight_s: float = 0.0
) -> DeviceCost:
    """10 ms forward, 20 ms backward (of it `weight_s` in W) and 1 ms update a layer, times the slowness."""
    times = LayerTimes(
        forward_s=(0.01 * slowness,) * NUM_LAYERS,
        backward_s=(0.02 * slowness,) * NUM_LAYERS,
        update_s=(0.001 * slowness,) * NUM_LAYERS,
        input_backward_s=((0.02 - weight_s) * slowness,) * NUM_LAYERS,
        weight_backward_s=(weight_s * slowness,) * NUM_LAYERS,
    )
    return DeviceCost(worker=worker, device=device, times=times, memory_bytes=memory_bytes)


def costs(*devices: DeviceCost, marks: tuple[str, ...] = ()) -> Costs:
    """A hop takes 1 ms and 1 ms for each MiB."""
    link = LinkCost(latency_s=0.001, bytes_per_s=MIB / 0.001)
    return Costs(layers=layers(marks), devices=devices, default_link=link)


def crew(*names: str) -> Crew:
    return Crew(
        workers=tuple(WorkerInfo(name=name) for name in names),
        fingerprints={name: "torch 2.13, AVX2" for name in names},
    )


def job(**strategy: Any) -> Job:
    return Job(
        model=torch.nn.Identity,
        loss=torch.nn.functional.mse_loss,
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=DataSource(torch.nn.Identity, batch_size=64),
        strategy=Strategy(**{"micro_batches": 4, **strategy}),
    )
