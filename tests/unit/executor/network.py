"""Executors in one process, joined by an in-memory network, and the plain single-process loop that they must equal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core import seeds, split
from pipesvc.core.edges import Edges, make_edges
from pipesvc.core.schedules import splits_backward
from pipesvc.errors import Where
from pipesvc.model.recompute import Recompute
from pipesvc.model.sequence import named_parameters
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.link_codecs import LinkCodecs
from pipesvc.wire.links import FEEDER, Link
from pipesvc.wire.training_file import position_of
from pipesvc.worker.executor import loading
from pipesvc.worker.executor.optimizing import SchedulerChoice, make_updates
from pipesvc.worker.executor.parameter_groups import OptimizerChoice, allot
from pipesvc.worker.executor.parts import Parts
from pipesvc.worker.executor.routes import input_link, label_link
from pipesvc.worker.executor.runtime import Runtime, Settings
from pipesvc.worker.executor.scaling import ScalerSettings, first_scale
from pipesvc.worker.executor.sequence_program import SequenceProgram
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.executor.training_state import Checkpoint
from pipesvc.worker.weights_reader import WeightsReader
from tests.unit.executor.batches import Batch, PlainRun, assert_equal_states, copied
from tests.unit.executor.memory_network import MemoryPort, Network
from tests.unit.executor.plain_updates import PlainUpdates

SEED = 7
KEEPING = Recompute()
EPOCH_STEPS = 4
MakeOptimizer = Callable[[list[Any]], torch.optim.Optimizer]  # of parameters, or of groups of them


@dataclass(frozen=True, kw_only=True)
class CheckpointFiles:
    """What a cluster goes on from."""

    weights: WeightsReader
    training: WeightsReader


@dataclass(frozen=True, kw_only=True)
class JobSetup(ABC):
    """A job for tests, but for its model. `owners[s]` is the worker of stage s."""

    owners: Sequence[str] = ()
    loss: Callable[..., Any] | None = None
    make_optimizer: MakeOptimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rule: Callable[..., Any] | None = None
    more_optimizers: Mapping[str, MakeOptimizer] = field(default_factory=dict)  # by pattern; they come first
    scheduler: SchedulerChoice | None = None
    plain_optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]] | None = None  # where they are grouped by hand
    schedule: str = "1F1B"
    in_flight: int = 0
    schedule_text: str = ""
    clip_norm: float = 0.0
    clip_value: float = 0.0
    autocast: torch.dtype | None = None
    scaler: ScalerSettings | None = None
    plain_scales: list[float] = field(default_factory=list)  # of the plain loop's scaler, after each step
    check_finite: bool = False
    recompute: Recompute = KEEPING
    compiles: bool = False
    defers_batch_norm: bool = False
    window: int = 2
    codecs: LinkCodecs = field(default_factory=LinkCodecs)

    @property
    def workers(self) -> Sequence[str]:
        return self.owners or [f"worker-{stage}" for stage in range(self.num_stages)]

    @property
    def decides(self) -> bool:
        return self.clip_norm > 0 or self.scaler is not None

    @property
    def choices(self) -> Sequence[OptimizerChoice]:
        make = partial(OptimizerChoice, groups={}, rule=None)
        more = [make(pattern=pattern, make=each) for pattern, each in self.more_optimizers.items()]
        return [*more, OptimizerChoice(make=self.make_optimizer, groups=self.groups, rule=self.rule)]

    @property
    @abstractmethod
    def num_stages(self) -> int: ...

    @abstractmethod
    def edges(self, *, has_labels: bool) -> Edges: ...

    @abstractmethod
    def make_parts(self, specs: Sequence[StageSpec]) -> Parts: ...

    @abstractmethod
    def input_parcels(self, inputs: Any) -> list[tuple[Link, Any]]:
        """What a feeder sends of a micro-batch."""

    def spec(self, index: int) -> StageSpec:
        return StageSpec(
            index=index,
            num_stages=self.num_stages,
            first_layer=self.first_layer(index),
            device=torch.device("cpu"),
            seed=SEED,
            loss=self.loss,
            check_finite=self.check_finite,
            splits_backward=splits_backward(self.schedule, self.schedule_text),
            recompute=self.recompute,
            compiles=self.compiles,
            clip_value=self.clip_value,
            clips_norm=self.clip_norm > 0,
            autocast=self.autocast,
            scale=first_scale(self.scaler).value if self.scaler is not None else None,
            defers_batch_norm=self.defers_batch_norm,
        )

    def first_layer(self, stage: int) -> int:
        return 0

    def epoch(self, step: int) -> int:
        return (step - 1) // EPOCH_STEPS


@dataclass(frozen=True, kw_only=True)
class Setup(JobSetup):
    """Of a list of layers; `cuts` are the first layers of the other stages."""

    make_layers: Callable[[], list[nn.Module]]
    cuts: Sequence[int] = ()

    @property
    def num_stages(self) -> int:
        return len(self.cuts) + 1

    def edges(self, *, has_labels: bool) -> Edges:
        return make_edges(self.num_stages, has_labels=has_labels, decides=self.decides)

    def make_parts(self, specs: Sequence[StageSpec]) -> Parts:
        layers = [(str(index), layer) for index, layer in enumerate(built(self.make_layers))]
        ends = [*self.cuts, len(layers)]
        programs = [SequenceProgram(spec, layers[spec.first_layer : ends[spec.index]]) for spec in specs]
        return Parts(programs=programs, parameters=named_parameters(layers))

    def input_parcels(self, inputs: Any) -> list[tuple[Link, Any]]:
        return [(input_link(0), inputs)]

    def first_layer(self, stage: int) -> int:
        return [0, *self.cuts][stage]


def built(make_layers: Callable[[], list[nn.Module]]) -> list[nn.Module]:
    torch.manual_seed(SEED)
    return make_layers()


class Cluster:
    """All executors of a job, and the little of feeder and coordinator that they need."""

    def __init__(self, setup: JobSetup, *, has_labels: bool, files: CheckpointFiles | None = None) -> None:
        self.setup = setup
        checkpoint = None if files is None else Checkpoint(files.training)
        scale = None if checkpoint is None else checkpoint.scale
        self.start = types_pb2.Position() if files is None else position_of(files.training.layout())
        self.network = Network(window=setup.window)
        self.losses: list[float] = []
        self.stages: dict[int, Stage] = {}
        self.runtimes: dict[str, Runtime] = {}
        self.ports: dict[str, MemoryPort] = {}
        for worker in dict.fromkeys(setup.workers):
            self.ports[worker] = MemoryPort(self.network)
            specs = [setup.spec(index) for index, owner in enumerate(setup.workers) if owner == worker]
            specs = [each if scale is None else replace(each, scale=scale.value) for each in specs]
            parts = setup.make_parts(specs)
            allotments = allot(setup.choices, parts.parameters, Where())
            make = partial(make_updates, allotments, setup.scheduler, where=Where())
            held = {spec.index: Stage(spec, each, make) for spec, each in zip(specs, parts.programs, strict=True)}
            self.stages |= held
            if files is not None and checkpoint is not None:
                loading.load(files.weights, held.values())
                for stage in held.values():
                    checkpoint.restore(stage, Where())
            settings = Settings(
                worker=worker,
                edges=setup.edges(has_labels=has_labels),
                schedule=setup.schedule,
                in_flight=setup.in_flight,
                schedule_text=setup.schedule_text,
                clip_norm=setup.clip_norm,
                scaler=setup.scaler,
                scale=scale,
                start=self.start,
                codecs=setup.codecs,
            )
            self.network.ports |= dict.fromkeys(held, self.ports[worker])
            self.runtimes[worker] = Runtime(self.ports[worker], held, settings)
        self.network.ports[FEEDER] = MemoryPort(self.network)

    def issue(self, step: int, batch: Batch) -> None:
        inputs, labels, weights = batch
        feeder = self.network.ports[FEEDER]
        for index, each in enumerate(inputs):
            for link, value in self.setup.input_parcels(each):
                feeder.send_parcel(link, step, index, value)
            if labels is not None:
                feeder.send_parcel(label_link(self.setup.num_stages), step, index, labels[index])
        for port in self.ports.values():
            issued = local_pb2.IssueStep(step=step, epoch=self.setup.epoch(step), shares=split.shares(weights))
            port.tell(issue_step=issued)

    def turn_until_idle(self) -> None:
        while any([runtime.turn(0.0) for runtime in self.runtimes.values()]):
            pass

    def reported(self, kind: str) -> list[Any]:
        return [each for port in self.ports.values() for each in port.reported(kind)]

    def train(self, batches: Sequence[Batch]) -> list[float]:
        """All steps, at most two issued ahead; the losses."""
        first = self.start.step + 1
        for step, batch in enumerate(batches, first):
            self.issue(step, batch)
            if step % 2 == 0:
                self.turn_until_idle()
        self.turn_until_idle()
        applied = self.reported("step_applied")
        done = sorted((each.step, each.stage) for each in applied)
        steps = range(first, first + len(batches))
        wanted = [(step, stage) for step in steps for stage in range(self.setup.num_stages)]
        assert done == wanted, [each.awaiting for each in self.reported("progress") if each.awaiting][-4:]
        last = self.setup.num_stages - 1
        assert {each.stage for each in applied if each.HasField("loss")} == {last}
        self.losses = [each.loss for each in sorted(applied, key=lambda each: each.step) if each.stage == last]
        return self.losses

    def state(self) -> dict[str, Tensor]:
        return {name: value for _, stage in sorted(self.stages.items()) for name, value in stage.state_dict().items()}

    def close(self) -> None:
        self.network.close()


def train_plain(setup: Setup, batches: Sequence[Batch]) -> PlainRun:
    """What one process without pipesvc does: losses, and the state by name."""
    layers = built(setup.make_layers)
    model = nn.Sequential(*layers)
    updates = PlainUpdates(setup, model)
    losses = []
    for step, (inputs, labels, weights) in enumerate(batches, 1):
        total = 0.0
        for index, share in enumerate(split.shares(weights)):
            value = copied(inputs[index])
            with updates.autocast():
                for number, layer in enumerate(layers):
                    torch.default_generator.manual_seed(seeds.derive(SEED, "forward", step, index, number))
                    value = layer(value)
                if setup.loss is not None:
                    value = setup.loss(value) if labels is None else setup.loss(value, labels[index])
            if share:
                updates.scaled(value * share).backward()
                total += share * value.item()
        updates.apply(step)
        losses.append(total)
    return losses, dict(model.state_dict())


def train(setup: JobSetup, batches: Sequence[Batch]) -> Cluster:
    """All steps on the network; gives the closed cluster, with its losses."""
    cluster = Cluster(setup, has_labels=batches[0][1] is not None)
    try:
        cluster.train(batches)
    finally:
        cluster.close()
    assert all(stage.num_live == 0 for stage in cluster.stages.values())
    return cluster


def train_both(setup: Setup, batches: Sequence[Batch]) -> Cluster:
    """Trains on the network and in one process, and insists on the same bits; gives the closed cluster."""
    cluster = train(setup, batches)
    assert_equal_to(cluster, train_plain(setup, batches))
    return cluster


def assert_equal_to(cluster: Cluster, plain: PlainRun) -> None:
    losses, state = plain
    assert cluster.losses == losses
    assert_equal_states(cluster.state(), state)
