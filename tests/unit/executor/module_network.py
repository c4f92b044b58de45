"""Jobs of modules with a forward of their own on the in-memory network, and the plain loop over them.

They are recorded, planned, built and fed by what a run uses: only the agents are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from pipesvc.core import flow_json, split
from pipesvc.core.edges import Edges, edges_of
from pipesvc.core.flow import Flow
from pipesvc.core.plan import Plan, StagePlan
from pipesvc.core.ties import ties_of_flow
from pipesvc.errors import Where
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.randomness import Streams
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from pipesvc.wire.links import Link
from pipesvc.worker.executor.parts import Parts, make_parts
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.feeder.routes import FeederRoutes, routes_of
from tests.unit.executor.batches import Batch, PlainRun, assert_equal_states, copied
from tests.unit.executor.network import SEED, Cluster, JobSetup, train
from tests.unit.executor.plain_updates import PlainUpdates


@dataclass(frozen=True, kw_only=True)
class ModuleSetup(JobSetup):
    """`sample` is a micro-batch to record with; `ends` are the units at which the stages end, by default even ones.

    Without a record there is one stage.
    """

    build: Callable[[], nn.Module]
    sample: Any
    parts: int
    ends: Sequence[int] = ()
    is_recorded: bool = True

    @cached_property
    def flow(self) -> Flow:
        model = build_module(self.build, 0, ())
        return record(model, Inputs(*arguments_of(model.forward, self.sample)))

    @cached_property
    def plan(self) -> Plan:
        units = [unit.name for unit in self.flow.units] if self.is_recorded else [""]
        ends = [*self.ends] or [len(units) * (stage + 1) // self.parts for stage in range(self.parts)]
        stages = tuple(
            StagePlan(
                index=index,
                label=f"stage:{index}",
                worker=self.workers[index],
                device="cpu",
                first_layer=[0, *ends][index],
                end_layer=end,
                layer_names=tuple(units[[0, *ends][index] : end]),
            )
            for index, end in enumerate(ends)
        )
        plan = Plan(
            stages=stages,
            schedule=self.schedule,
            micro_batches=len(stages),
            flow_json=flow_json.to_json(self.flow) if self.is_recorded else "",
            ties=ties_of_flow(self.flow, ends) if self.is_recorded else (),
            feeder_worker=self.workers[0],
            threads={},
        )
        return Plan.from_json(plan.to_json())

    @property
    def num_stages(self) -> int:
        return self.parts

    @cached_property
    def feeder_routes(self) -> FeederRoutes:
        return routes_of(self.plan, has_labels=False)

    def edges(self, *, has_labels: bool) -> Edges:
        return edges_of(self.plan, has_labels=has_labels, decides=self.decides)

    def make_parts(self, specs: Sequence[StageSpec]) -> Parts:
        return make_parts(self.build, self.plan, specs, Where())

    def input_parcels(self, inputs: Any) -> list[tuple[Link, Any]]:
        return list(self.feeder_routes.parcels(inputs, None))


def train_plain(setup: ModuleSetup, batches: Sequence[Batch]) -> PlainRun:
    """One process; what its modules draw is keyed by their paths, as in every partition."""
    torch.manual_seed(SEED)
    model = setup.build()
    random_modules = setup.flow.random_modules if setup.is_recorded else ()
    streams = Streams(model, random_modules, torch.device("cpu"))
    updates = PlainUpdates(setup, model)
    losses = []
    for step, (inputs, labels, weights) in enumerate(batches, 1):
        total = 0.0
        for index, share in enumerate(split.shares(weights)):
            args, kwargs = arguments_of(model.forward, copied(inputs[index]))
            with updates.autocast():
                with streams.root(seed=SEED, step=step, micro_batch=index):
                    value = model(*args, **kwargs)
                if setup.loss is not None:
                    value = setup.loss(value) if labels is None else setup.loss(value, labels[index])
            if share:
                updates.scaled(value * share).backward()
                total += share * value.item()
        updates.apply(step)
        losses.append(total)
    return losses, dict(model.state_dict())


def train_both(setup: ModuleSetup, batches: Sequence[Batch]) -> Cluster:
    """On the network and in one process, with the same bits; the state of the stages loads into the plain module."""
    cluster = train(setup, batches)
    losses, state = train_plain(setup, batches)
    assert cluster.losses == losses
    found = cluster.state()
    assert_equal_states({name: found[name] for name in state}, state)
    setup.build().load_state_dict(found, strict=True)
    return cluster
