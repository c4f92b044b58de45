"""One stage's share of a flow: what is computed once, before the first micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from pipesvc.core.flow import (
    PARAMETER,
    Flow,
    gradient_transfers,
    inputs_of,
    shared_parameters,
    stage_of,
    transfers,
)
from pipesvc.model.replay.guards import GUARD_TYPE
from pipesvc.model.replay.operations import Key
from pipesvc.model.tied import TiedGradients


class Part:
    def __init__(self, model: nn.Module, flow: Flow, ends: Sequence[int], stage: int) -> None:
        self.stage = stage
        self.num_stages = len(ends)
        self.stage_of = {unit.name: stage_of(ends, index) for index, unit in enumerate(flow.units)}
        self.units = {unit.name: model.get_submodule(unit.name) for unit in flow.units if unit.type != GUARD_TYPE}
        self._tables = [module._buffers for module in model.modules() if module._buffers]
        self.inputs = frozenset(inputs_of(flow, ends, stage))
        self.random_operations = frozenset(map(_step, flow.random_operations))
        routes = transfers(flow, ends)
        self.sends = {consumer: keys for (producer, consumer), keys in routes.items() if producer == stage}
        self.receives = {producer: keys for (producer, consumer), keys in routes.items() if consumer == stage}
        # (call, operation) -> the leaves of it that are to be sent
        self.wanted: dict[tuple[int, int], list[int]] = {}
        for text in sorted({key for keys in self.sends.values() for key in keys}):
            call, operation, leaf = key_of(text)
            self.wanted.setdefault((call, operation), []).append(leaf)
        # key -> the stage that its gradient goes to
        self.gradient_targets = {
            key: receiver
            for (sender, receiver), keys in gradient_transfers(flow, ends).items()
            if sender == stage
            for key in keys
            if not key.startswith(PARAMETER)
        }
        users, trained = shared_parameters(flow, ends), {each.name for each in flow.shared if each.is_trained}
        self.tied = TiedGradients(
            stage, {name: stages for name, stages in users.items() if name in trained}, model.get_parameter
        )

    def buffer_ids(self) -> set[int]:
        """Asked for each run: moving a module makes new buffers, and so may forward."""
        return {id(buffer) for table in self._tables for buffer in table.values() if buffer is not None}


def key_of(text: str) -> Key:
    call, operation, leaf = map(int, text.split("."))
    return call, operation, leaf


def text_of(key: Key) -> str:
    return f"{key[0]}.{key[1]}.{key[2]}"


def _step(text: str) -> tuple[int, int]:
    call, operation = map(int, text.split("."))
    return call, operation
