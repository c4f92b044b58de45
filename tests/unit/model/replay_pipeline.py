"""All stages of a model in one process, with the wires between them, and the plain module to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core.actions import ActionKind
from pipesvc.core.flow import Flow, parameters_of
from pipesvc.core.schedules import worker_actions
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.run import Pass, StageReplay
from pipesvc.model.skeleton import build_module

SEED = 7
CPU = torch.device("cpu")
LossOf = Callable[[Any], Tensor]


@dataclass
class Outcome:
    results: list[Any]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def plain(build: Callable[[], nn.Module], batches: Sequence[Inputs], loss_of: LossOf) -> Outcome:
    torch.manual_seed(SEED)
    model = build()
    results = []
    for batch in batches:
        args, kwargs = copied(batch)
        result = model(*args, **kwargs)
        (loss_of(result) / len(batches)).backward()  # type: ignore[no-untyped-call]
        results.append(result)
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return Outcome(results, gradients, dict(model.named_buffers()))


def copied(batch: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return batch.transform(lambda path, tensor: tensor.clone())


class Pipeline:
    """Each stage has a model of its own, in which only its own parameters have values."""

    def __init__(self, build: Callable[[], nn.Module], flow: Flow, ends: Sequence[int]) -> None:
        self.num_stages = len(ends)
        self.models = [build_module(build, SEED, parameters_of(flow, ends, stage)) for stage in range(len(ends))]
        self.stages = [StageReplay(model, flow, ends, stage, CPU) for stage, model in enumerate(self.models)]
        self.num_values = 0

    def step(self, batches: Sequence[Inputs], loss_of: LossOf, schedule: str = "1F1B") -> Outcome:
        """Every stage works through its list of actions; one whose tensors have not come waits."""
        p, m = self.num_stages, len(batches)
        pending = _actions(schedule, p, m)
        self._values: list[list[dict[str, Tensor]]] = [[{} for _ in range(m)] for _ in range(p)]
        self._gradients: list[list[dict[str, Tensor | None]]] = [[{} for _ in range(m)] for _ in range(p)]
        alive: dict[tuple[int, int], Pass] = {}
        forwarded, returned = {(-1, i) for i in range(m)}, {(p, i) for i in range(m)}
        results: list[Any] = [None] * m
        while any(pending):
            before = sum(map(len, pending))
            for stage in range(p):
                if not pending[stage]:
                    continue
                kind, index = pending[stage][0]
                if kind is ActionKind.FORWARD and (stage - 1, index) in forwarded:
                    alive[stage, index] = self._forward(stage, index, batches[index])
                    results[index] = alive[stage, index].result
                    forwarded.add((stage, index))
                elif kind is ActionKind.BACKWARD and (stage + 1, index) in returned:
                    self._backward(stage, index, alive.pop((stage, index)), loss_of, m)
                    returned.add((stage, index))
                else:
                    continue
                pending[stage].pop(0)
            assert sum(map(len, pending)) < before, pending
        return self._outcome(results)

    def _forward(self, stage: int, index: int, batch: Inputs) -> Pass:
        args, kwargs = batch.transform(
            lambda path, tensor: tensor.clone() if path in self.stages[stage].part.inputs else tensor.to("meta")
        )
        received = self._values[stage][index]
        assert set(received) == {key for keys in self.stages[stage].part.receives.values() for key in keys}
        found = self.stages[stage].forward(Inputs(args, kwargs), received, step=1, micro_batch=index)
        for consumer, values in found.values.items():
            for key, tensor in values.items():
                self._values[consumer][index][key] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
                self.num_values += 1
        return found

    def _backward(self, stage: int, index: int, found: Pass, loss_of: LossOf, m: int) -> None:
        loss = loss_of(found.result) / m if stage == self.num_stages - 1 else None
        for receiver, gradients in found.backward(self._gradients[stage][index], loss).items():
            self._gradients[receiver][index].update(gradients)

    def _outcome(self, results: list[Any]) -> Outcome:
        gradients: dict[str, Tensor] = {}
        buffers: dict[str, Tensor] = {}
        for model in self.models:
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    assert name not in gradients, f"{name} has a gradient on two stages"
                    gradients[name] = parameter.grad
            buffers.update({name: each for name, each in model.named_buffers() if not each.is_meta})
        return Outcome(results, gradients, buffers)


def _actions(schedule: str, num_stages: int, num_micro_batches: int) -> list[list[tuple[ActionKind, int]]]:
    lists = (
        worker_actions(
            schedule, stages=[stage], num_stages=num_stages, num_micro_batches=num_micro_batches, in_flight=0
        )
        for stage in range(num_stages)
    )
    kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
    return [[(each.kind, each.micro_batch or 0) for each in actions if each.kind in kinds] for actions in lists]
