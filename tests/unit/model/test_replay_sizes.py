"""For which unit a parameter counts, and which units there are for boundaries by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.core.flow import Flow
from pipesvc.errors import PipesvcError
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_zoo import ZOO

D, FLOAT = 4, 4
LINEAR = (D * D + D) * FLOAT


class Model(nn.Module):
    """Its own position table is used before the first unit, its scale behind two units, one weight by itself."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(D))
        self.scale = nn.Parameter(torch.zeros(D), requires_grad=False)
        self.spare = nn.Parameter(torch.zeros(D))
        self.register_buffer("shift", torch.zeros(D))
        self.last = nn.Linear(D, D)
        self.blocks = nn.ModuleList(nn.Linear(D, D) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        h = x + self.position
        for block in self.blocks:
            h = block(h) * self.scale
        h = h @ self.last.weight + self.shift
        return self.last(h)


def flow_of(model: type[nn.Module], *cuts: str) -> Flow:
    return record(build_module(model, 0, ()), Inputs((torch.randn(2, D),)), cuts=cuts)


def names_of(flow: Flow) -> list[str]:
    return [unit.name for unit in flow.units]


def test_a_parameter_counts_for_the_unit_behind_which_it_is_used_first() -> None:
    flow = flow_of(Model)
    assert names_of(flow) == ["blocks.0", "blocks.1", "last"]
    vector = D * FLOAT
    # The position comes before the first unit, and so does what nobody uses; the last unit's weight is used before it.
    assert [unit.parameter_bytes for unit in flow.units] == [LINEAR + 3 * vector, LINEAR + D * D * FLOAT, vector]
    assert [unit.gradient_bytes for unit in flow.units] == [LINEAR + 2 * vector, LINEAR + D * D * FLOAT, vector]
    assert [unit.buffer_bytes for unit in flow.units] == [0, vector, 0]
    assert [(each.name, each.num_bytes, each.is_trained) for each in flow.shared] == [
        ("scale", vector, False),
        ("last.weight", D * D * FLOAT, True),
    ]


@pytest.mark.parametrize("name", ZOO)
def test_all_parameters_count_once(name: str) -> None:
    case = ZOO[name]
    flow = record(build_module(case.build, 0, ()), case.inputs(2, 3))
    model = build_module(case.build, 0, ())
    assert sum(unit.parameter_bytes for unit in flow.units) == sum(each.nbytes for each in model.parameters())
    assert sum(unit.buffer_bytes for unit in flow.units) == sum(each.nbytes for each in model.buffers())


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(D, D), nn.Linear(D, D))

    def forward(self, x: Tensor) -> Any:
        return self.blocks(x)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.last = Part(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.part(x))


def test_boundaries_at_units_leave_the_units_as_they_are_without() -> None:
    assert names_of(flow_of(Nested)) == ["part.blocks.0", "part.blocks.1", "last"]
    assert flow_of(Nested, "last") == flow_of(Nested)


class Answer:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Answering(nn.Linear):
    """Gives an object that no stage could send to another."""

    def forward(self, x: Any) -> Any:
        return Answer(super().forward(x.value if isinstance(x, Answer) else x))


class Unwrapping(Part):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Answering(D, D), Answering(D, D))

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).value


class Objects(Nested):
    def __init__(self) -> None:
        super().__init__()
        self.part = Unwrapping()


def test_where_units_cannot_be_followed_a_boundary_beside_them_helps() -> None:
    with pytest.raises(PipesvcError, match=r"unit 'part\.blocks\.0' returns a Answer object"):
        flow_of(Objects)
    assert names_of(flow_of(Objects, "last")) == ["part", "last"]
