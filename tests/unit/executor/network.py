"""Executors in one process, joined by an in-memory network, and the plain single-process loop that they must equal.

A parcel is cloned into contiguous memory on its way, as the wire does, and a link carries no parcel beyond its window.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core import seeds, split
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire import tree
from pipesvc.wire.links import FEEDER, Link
from pipesvc.worker.executor.routes import input_link, label_link
from pipesvc.worker.executor.runtime import Runtime, Settings
from pipesvc.worker.executor.stage import Stage, StageSpec
from pipesvc.worker.port import ParcelArrived

SEED = 7
Layers = Sequence[nn.Module]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
# One mini-batch: the micro-batches' inputs, their labels (None: the job has none), their weights.
Batch = tuple[list[Any], list[Any] | None, list[float]]
# Losses, and the state by name.
PlainRun = tuple[list[float], dict[str, Tensor]]


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


class MemoryPort:
    """One end of the network; `reports` keeps what was said to the agent."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.commands: deque[local_pb2.ToChild] = deque()
        self.reports: list[local_pb2.FromChild] = []
        self.consumed_counts: Counter[Link] = Counter()

    def fileno(self) -> int:
        return self._wake

    def close(self) -> None:
        os.close(self._wake)

    def tell(self, **message: Any) -> None:
        self.commands.append(local_pb2.ToChild(**message))
        os.eventfd_write(self._wake, 1)

    def poll(self, timeout_s: float | None) -> list[local_pb2.ToChild | ParcelArrived]:
        events = self._take()
        if not events and timeout_s:
            select.select([self._wake], [], [], timeout_s)
            events = self._take()
        return events

    def send_parcel(self, link: Link, step: int, micro_batch: int, value: Any) -> None:
        structure, leaves = tree.flatten(value, is_tensor)
        self._network.carry(link, step, micro_batch, structure, leaves)

    def send_gradients(self, link: Link, step: int, micro_batch: int, grads: Sequence[Tensor | None]) -> None:
        self._network.carry(link, step, micro_batch, "", grads)

    def consumed(self, link: Link) -> None:
        self.consumed_counts[link] += 1
        self._network.credit(link)

    def report(self, message: local_pb2.FromChild) -> None:
        self.reports.append(message)

    def _take(self) -> list[local_pb2.ToChild | ParcelArrived]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        events: list[local_pb2.ToChild | ParcelArrived] = list(self._network.arrivals(self))
        while self.commands:
            events.append(self.commands.popleft())
        return events

    def reported(self, kind: str) -> list[Any]:
        return [getattr(each, kind) for each in self.reports if each.WhichOneof("message") == kind]


@dataclass(kw_only=True)
class Network:
    """`window` bounds the parcels that a link's receiver holds and has not consumed."""

    window: int = 2
    ports: dict[int, MemoryPort] = field(default_factory=dict)
    sent: Counter[Link] = field(default_factory=Counter)
    _queues: dict[Link, deque[ParcelArrived]] = field(default_factory=dict)
    _unconsumed: Counter[Link] = field(default_factory=Counter)

    def carry(self, link: Link, step: int, micro_batch: int, structure: str, leaves: Sequence[Tensor | None]) -> None:
        self.sent[link] += 1
        parcel = ParcelArrived(
            link=link,
            step=step,
            micro_batch=micro_batch,
            leaves=tuple(
                None if each is None else each.detach().clone(memory_format=torch.contiguous_format) for each in leaves
            ),
            requires_grad=tuple(each is not None and each.requires_grad for each in leaves),
            structure=structure,
        )
        self._queues.setdefault(link, deque()).append(parcel)
        port = self.ports.get(link.consumer)
        if port is not None:
            os.eventfd_write(port.fileno(), 1)

    def arrivals(self, port: MemoryPort) -> list[ParcelArrived]:
        arrived = []
        for link, queue in self._queues.items():
            if self.ports.get(link.consumer) is not port:
                continue
            while queue and self._unconsumed[link] < self.window:
                arrived.append(queue.popleft())
                self._unconsumed[link] += 1
        return arrived

    def credit(self, link: Link) -> None:
        self._unconsumed[link] -= 1
        assert self._unconsumed[link] >= 0
        if self._queues.get(link):
            os.eventfd_write(self.ports[link.consumer].fileno(), 1)

    def close(self) -> None:
        for port in {id(port): port for port in self.ports.values()}.values():
            port.close()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A job for tests. `owners[s]` is the worker of stage s; `cuts` are the first layers of the other stages."""

    make_layers: Callable[[], list[nn.Module]]
    cuts: Sequence[int] = ()
    owners: Sequence[str] = ()
    loss: Callable[..., Any] | None = None
    make_optimizer: MakeOptimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    schedule: str = "1F1B"
    in_flight: int = 0
    clip_norm: float = 0.0
    check_finite: bool = False
    window: int = 2

    @property
    def num_stages(self) -> int:
        return len(self.cuts) + 1

    @property
    def workers(self) -> Sequence[str]:
        return self.owners or [f"worker-{stage}" for stage in range(self.num_stages)]


def built(make_layers: Callable[[], list[nn.Module]]) -> list[nn.Module]:
    torch.manual_seed(SEED)
    return make_layers()


class Cluster:
    """All executors of a job, and the little of feeder and coordinator that they need."""

    def __init__(self, setup: Setup, *, has_labels: bool) -> None:
        self.setup = setup
        self.has_labels = has_labels
        self.network = Network(window=setup.window)
        self.losses: list[float] = []
        self.stages: dict[int, Stage] = {}
        self.runtimes: dict[str, Runtime] = {}
        layers = built(setup.make_layers)
        bounds = [0, *setup.cuts, len(layers)]
        for index in range(setup.num_stages):
            spec = StageSpec(
                index=index,
                num_stages=setup.num_stages,
                first_layer=bounds[index],
                device=torch.device("cpu"),
                seed=SEED,
                loss=setup.loss,
                check_finite=setup.check_finite,
            )
            own = [(str(layer), layers[layer]) for layer in range(bounds[index], bounds[index + 1])]
            self.stages[index] = Stage(spec, own, setup.make_optimizer)
        self.ports: dict[str, MemoryPort] = {}
        for worker in dict.fromkeys(setup.workers):
            self.ports[worker] = MemoryPort(self.network)
            held = {index: self.stages[index] for index, owner in enumerate(setup.workers) if owner == worker}
            settings = Settings(
                worker=worker,
                num_stages=setup.num_stages,
                schedule=setup.schedule,
                in_flight=setup.in_flight,
                clip_norm=setup.clip_norm,
                has_labels=has_labels,
            )
            self.network.ports |= dict.fromkeys(held, self.ports[worker])
            self.runtimes[worker] = Runtime(self.ports[worker], held, settings)
        self.network.ports[FEEDER] = MemoryPort(self.network)

    def issue(self, step: int, batch: Batch) -> None:
        inputs, labels, weights = batch
        feeder = self.network.ports[FEEDER]
        for index, each in enumerate(inputs):
            feeder.send_parcel(input_link(0), step, index, each)
            if labels is not None:
                feeder.send_parcel(label_link(self.setup.num_stages), step, index, labels[index])
        for port in self.ports.values():
            port.tell(issue_step=local_pb2.IssueStep(step=step, shares=split.shares(weights)))

    def turn_until_idle(self) -> None:
        while any([runtime.turn(0.0) for runtime in self.runtimes.values()]):
            pass

    def reported(self, kind: str) -> list[Any]:
        return [each for port in self.ports.values() for each in port.reported(kind)]

    def train(self, batches: Sequence[Batch]) -> list[float]:
        """All steps, at most two issued ahead; the losses."""
        for step, batch in enumerate(batches, 1):
            self.issue(step, batch)
            if step % 2 == 0:
                self.turn_until_idle()
        self.turn_until_idle()
        applied = self.reported("step_applied")
        done = sorted((each.step, each.stage) for each in applied)
        wanted = [(step, stage) for step in range(1, len(batches) + 1) for stage in range(self.setup.num_stages)]
        assert done == wanted, [each.awaiting for each in self.reported("progress") if each.awaiting][-4:]
        last = self.setup.num_stages - 1
        assert {each.stage for each in applied if each.HasField("loss")} == {last}
        self.losses = [each.loss for each in sorted(applied, key=lambda each: each.step) if each.stage == last]
        return self.losses

    def state(self) -> dict[str, Tensor]:
        return {name: value for stage in self.stages.values() for name, value in stage.state_dict().items()}

    def close(self) -> None:
        self.network.close()


def train_plain(setup: Setup, batches: Sequence[Batch]) -> PlainRun:
    """What one process without pipesvc does: losses, and the state by name."""
    layers = built(setup.make_layers)
    model = nn.Sequential(*layers)
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = setup.make_optimizer(parameters)
    losses = []
    for step, (inputs, labels, weights) in enumerate(batches, 1):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for index, share in enumerate(split.shares(weights)):
            value = copied(inputs[index])
            for number, layer in enumerate(layers):
                torch.default_generator.manual_seed(seeds.derive(SEED, "forward", step, index, number))
                value = layer(value)
            if setup.loss is not None:
                value = setup.loss(value) if labels is None else setup.loss(value, labels[index])
            (value * share).backward()
            total += share * value.item()
        if setup.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, setup.clip_norm)
        optimizer.step()
        losses.append(total)
    return losses, dict(model.state_dict())


def train(setup: Setup, batches: Sequence[Batch]) -> Cluster:
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


def assert_equal_states(state: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> None:
    assert list(state) == list(plain)
    differing = [name for name in plain if not torch.equal(state[name], plain[name])]
    assert differing == []


def copied(value: Any) -> Any:
    structure, leaves = tree.flatten(value, is_tensor)
    return tree.unflatten(structure, [each.clone() for each in leaves])


def cut_rows(value: Any, rows: Sequence[int]) -> list[Any]:
    """A batch as micro-batches."""
    structure, leaves = tree.flatten(value, is_tensor)
    parts = [each.split(list(rows)) for each in leaves]
    return [tree.unflatten(structure, [part[index] for part in parts]) for index in range(len(rows))]


def batch_of(inputs: Any, labels: Any, num_rows: int, num_micro_batches: int) -> Batch:
    rows = split.micro_batch_rows(num_rows, num_micro_batches)
    return cut_rows(inputs, rows), None if labels is None else cut_rows(labels, rows), [float(each) for each in rows]
