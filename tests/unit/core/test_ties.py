"""Who owns a parameter of several stages, what goes between them, and what it weighs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipesvc.client.codec import Codec
from pipesvc.client.planning import predict
from pipesvc.core.actions import Action, ActionKind
from pipesvc.core.edges import edges_of
from pipesvc.core.flow import Flow
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo, SharedParameter
from pipesvc.core.plan import Plan, StrategySettings, WorkerInfo
from pipesvc.core.planner import make_plan
from pipesvc.core.stage_costs import stage_costs
from pipesvc.core.ties import Tie, copy_bytes, gradient_chain, ties_of_flow, ties_of_layers, weight_transfers
from pipesvc.errors import PipesvcError
from pipesvc.worker.executor.routes import read_by
from tests.unit.client.planning_costs import MIB, costs, device, layers

TABLE = SharedParameter(name="0.weight", num_bytes=MIB, is_trained=True)
FROZEN = replace(TABLE, name="1.weight", is_trained=False)
# Layers 0, 3 and 5 share a table, 1 and 5 what is frozen.
SHARED = ((TABLE,), (FROZEN,), (), (TABLE,), (), (TABLE, FROZEN))
TIES = (
    Tie(name="0.weight", stages=(0, 1, 2), num_bytes=MIB, is_trained=True),
    Tie(name="1.weight", stages=(0, 2), num_bytes=MIB, is_trained=False),
)


def plan_of(infos: list[LayerInfo], *, memory_bytes: int = 0, flow_json: str = "", **settings: Any) -> Plan:
    workers = [WorkerInfo(name=name, memory_bytes=memory_bytes) for name in "abc"]
    plan = make_plan(StrategySettings(micro_batches=2, **settings), infos, workers, flow_json)
    assert isinstance(plan, Plan)
    return plan


def listed() -> list[LayerInfo]:
    return [
        LayerInfo(name=f"block{index}", type="Block", parameter_bytes=MIB, gradient_bytes=MIB, shared=shared)
        for index, shared in enumerate(SHARED)
    ]


def test_the_first_stage_owns_and_the_others_hold_copies() -> None:
    assert ties_of_layers(SHARED, (2, 4, 6)) == TIES
    assert [tie.owner for tie in TIES] == [0, 0]
    assert ties_of_layers(SHARED, (6,)) == ()
    assert [tie.stages for tie in ties_of_layers(SHARED, (4, 6))] == [(0, 1), (0, 1)]
    assert [copy_bytes(TIES, stage) for stage in range(3)] == [0, MIB, 2 * MIB]


def test_of_a_flow_they_are_those_that_positions_of_several_stages_use() -> None:
    flow = Flow(
        units=tuple(listed()),
        values=(),
        input_users={},
        parameters={"0.weight": (-1, 3, 5), "1.weight": (1, 5), "2.weight": (2,)},
        shared=(TABLE, FROZEN),
    )
    assert ties_of_flow(flow, (2, 4, 6)) == TIES
    assert plan_of(listed(), flow_json=to_json(flow)).ties == TIES


def test_only_what_is_trained_travels_and_one_tensor_is_sent_to_once() -> None:
    assert gradient_chain(TIES) == {(1, 0): ("0.weight",), (2, 1): ("0.weight",)}
    assert weight_transfers(TIES, ["a", "b", "c"]) == {(0, 1): ("0.weight",), (0, 2): ("0.weight",)}
    assert weight_transfers(TIES, ["a", "b", "b"]) == {(0, 1): ("0.weight",)}
    assert weight_transfers(TIES, ["a", "b", "a"]) == {(0, 1): ("0.weight",)}
    assert weight_transfers(TIES, ["a", "a", "a"]) == {}


def test_edges_of_a_list_are_those_of_a_chain_and_its_ties() -> None:
    plan = plan_of(listed(), boundaries=(3, 5))
    assert [tie.stages for tie in plan.ties] == [(0, 1, 2), (0, 2)]
    skipping = plan_of([replace(each, shared=()) if each.name == "block3" else each for each in listed()])
    edges = edges_of(skipping, has_labels=True, decides=True)
    assert edges.backwards == ((1, 0), (2, 1), (2, 0))
    assert edges.gradient_senders(0) == (1, 2)
    assert edges.weights == {(0, 2): ("0.weight",)}
    assert (0, 2) in edges_of(skipping, has_labels=True, decides=False).pairs
    links = [str(link) for link in read_by(edges, Action(2, ActionKind.UPDATE))]
    assert links == ["0>2/decision", "0>2/weight"]


def test_a_plan_tells_its_ties_and_reads_them_back() -> None:
    plan = plan_of(listed())
    assert plan.ties == TIES
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(PipesvcError, match="wrong value for is_trained of a Tie"):
        Plan.from_json(plan.to_json().replace('"is_trained":true', '"is_trained":1'))


def test_a_copy_counts_at_every_holder_with_its_gradient() -> None:
    plan = plan_of(listed(), memory_bytes=7 * MIB)
    assert [stage.parameter_bytes for stage in plan.stages] == [2 * MIB, 3 * MIB, 4 * MIB]
    with pytest.raises(PipesvcError, match=r"c/cpu would need 4.0 MiB weights \+ 3.0 MiB gradients = 7.0 MiB of 6.9"):
        plan_of(listed(), memory_bytes=int(6.9 * MIB))


def test_measured_costs_count_copies_and_fit_the_plan_that_was_made() -> None:
    measured = replace(
        costs(*map(device, "abc")),
        layers=tuple(replace(layer, shared=shared) for layer, shared in zip(layers(), SHARED, strict=True)),
    )
    stages = stage_costs(measured, boundaries=(2, 4), devices=(0, 1, 2))
    assert [stage.weight_bytes for stage in stages] == [2 * MIB, 3 * MIB, 4 * MIB]
    report, _ = predict(plan_of(listed()), measured, {}, decides=False, codec=Codec())
    assert [stage.parameter_bytes for stage in report.stages] == [2 * MIB, 3 * MIB, 4 * MIB]
