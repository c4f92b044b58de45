"""A job of the zoo on the in-memory network, and the plain loop, each with what can be kept between jobs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipesvc.core.flow import Flow
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from tests.unit.executor import module_network, network
from tests.unit.executor.batches import Batch, PlainRun
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.network import JobSetup, Setup
from tests.unit.executor.owners import OWNERS, owners_of
from tests.zoo.table import ZOO

STAGES = (2, 3, 4)
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "ZBH1", "ZBV")
MICRO_BATCHES = (1, 2, 3, 8)
NUM_STEPS = 3
# Rows and positions of the micro-batches of a step; both are uneven.
SIZES = ((2, 5), (3, 4), (1, 6), (2, 5), (3, 4), (1, 6), (2, 5), (2, 3))


@dataclass(frozen=True, kw_only=True)
class ZooSetup(ModuleSetup):
    """Its forward is followed once for all partitions."""

    name: str

    @property
    def flow(self) -> Flow:
        return flow_of(self.name)


@functools.cache
def flow_of(name: str) -> Flow:
    case = ZOO[name]
    model = build_module(case.build, 0, ())
    return record(model, Inputs(*arguments_of(model.forward, case.inputs(2, 5))))


def setup_of(name: str, num_stages: int, schedule: str) -> JobSetup:
    case = ZOO[name]
    options: dict[str, Any] = {
        "loss": case.loss,
        "make_optimizer": case.optimizer,
        "schedule": schedule,
        "owners": owners_of(schedule, num_stages),
        "clip_norm": 1.0,
    }
    if case.is_chain:
        num_layers = len(case.build())
        cuts = [num_layers * stage // num_stages for stage in range(1, num_stages)]
        return Setup(make_layers=lambda: list(case.build()), cuts=cuts, **options)
    return ZooSetup(name=name, build=case.build, sample=case.inputs(2, 5), parts=num_stages, **options)


def is_defined(schedule: str, num_stages: int) -> bool:
    return schedule not in ("Interleaved1F1B", "ZBV") or (schedule, num_stages) in OWNERS


@functools.cache
def batches_of(name: str, num_micro_batches: int) -> Sequence[Batch]:
    """Three mini-batches, each other data."""
    case = ZOO[name]
    torch.manual_seed(3)
    sizes = SIZES[:num_micro_batches]
    return [
        ([case.inputs(*each) for each in sizes], None, [float(rows) for rows, _ in sizes]) for _ in range(NUM_STEPS)
    ]


@functools.cache
def plain_run(name: str, num_micro_batches: int) -> PlainRun:
    setup = setup_of(name, 2, "1F1B")
    batches = batches_of(name, num_micro_batches)
    if isinstance(setup, Setup):
        return network.train_plain(setup, batches)
    assert isinstance(setup, ZooSetup)
    return module_network.train_plain(setup, batches)
