"""Who hears from whom, in a chain and in a flow with skips."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.edges import Edges, edges_of, make_edges
from pipesvc.core.flow import Flow, Value
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo
from pipesvc.core.plan import Plan, StagePlan


def value(key: str, producer: int, users: Sequence[int], *, is_differentiable: bool = True) -> Value:
    return Value(
        key=key,
        producer=producer,
        users=tuple(users),
        shape=(2,),
        dtype="float32",
        num_bytes=8,
        is_differentiable=is_differentiable,
    )


# 0 gives a skip to 2 and 3; 1 reads only inputs; 2 gives numbers without a gradient to 3.
FLOW = Flow(
    units=tuple(LayerInfo(name=name, type="Linear") for name in "abcd"),
    values=(value("1.0.0", 0, [2, 3]), value("2.0.0", 1, [2]), value("3.0.0", 2, [3], is_differentiable=False)),
    input_users={"x": (0,), "y": (1,)},
    parameters={},
)


def table(edges: Edges) -> list[tuple[tuple[int, ...], ...]]:
    return [
        (
            edges.activations(stage),
            edges.consumers(stage),
            edges.gradient_senders(stage),
            edges.gradient_receivers(stage),
        )
        for stage in range(edges.num_stages)
    ]


def test_a_chain_hears_from_its_neighbours() -> None:
    edges = make_edges(3, has_labels=True, decides=False)
    assert table(edges) == [((), (1,), (1,), ()), ((0,), (2,), (2,), (0,)), ((1,), (), (), (1,))]
    assert (edges.input_readers, edges.label_readers) == ((0,), (2,))
    assert edges.pairs == ((0, 1), (1, 2), (1, 0), (2, 1))


def test_n11_a_skip_goes_straight_and_its_gradient_over_the_users() -> None:
    edges = make_edges(4, flow=FLOW, ends=(1, 2, 3, 4), has_labels=False, decides=False)
    assert table(edges) == [
        ((), (2, 3), (2,), ()),
        ((), (2,), (2,), ()),
        ((0, 1), (3,), (3,), (0, 1)),
        ((0, 2), (), (), (2,)),
    ]
    assert (edges.input_readers, edges.label_readers) == ((0, 1, 2, 3), ())


def test_with_clipping_every_stage_talks_with_stage_0() -> None:
    assert make_edges(3, has_labels=False, decides=True).pairs == ((0, 1), (1, 2), (1, 0), (2, 1), (2, 0), (0, 2))


def test_one_stage_hears_from_the_feeder_alone() -> None:
    for edges in (
        make_edges(1, has_labels=True, decides=True),
        make_edges(1, flow=FLOW, ends=(4,), has_labels=True, decides=True),
    ):
        assert table(edges) == [((), (), (), ())]
        assert (edges.pairs, edges.input_readers, edges.label_readers) == ((), (0,), (0,))


@given(st.sets(st.integers(1, 3)))
def test_what_is_sent_is_received_and_ascends(cuts: set[int]) -> None:
    edges = make_edges(len(cuts) + 1, flow=FLOW, ends=(*sorted(cuts), 4), has_labels=False, decides=False)
    stages = range(edges.num_stages)
    assert {(one, other) for one in stages for other in edges.consumers(one)} == set(edges.forwards)
    assert {(one, other) for other in stages for one in edges.activations(other)} == set(edges.forwards)
    assert {(one, other) for one in stages for other in edges.gradient_receivers(one)} == set(edges.backwards)
    assert {(one, other) for other in stages for one in edges.gradient_senders(other)} == set(edges.backwards)
    assert all(producer < consumer for producer, consumer in edges.forwards)
    assert all(receiver < sender for sender, receiver in edges.backwards)


@pytest.mark.parametrize("flow", [None, FLOW])
def test_the_edges_of_a_plan(flow: Flow | None) -> None:
    ends = (0, 2, 3, 4)
    stages = tuple(
        StagePlan(
            index=index,
            label=f"stage:{index}",
            worker="a",
            device="cpu",
            first_layer=ends[index],
            end_layer=ends[index + 1],
            layer_names=tuple("abcd"[ends[index] : ends[index + 1]]),
        )
        for index in range(3)
    )
    text = "" if flow is None else to_json(flow)
    plan = Plan(stages=stages, schedule="1F1B", micro_batches=2, flow_json=text, feeder_worker="a", threads={})
    assert (plan.ends, plan.flow) == ((2, 3, 4), flow)
    assert Plan.from_json(plan.to_json()).flow == flow
    expected = make_edges(3, flow=flow, ends=(2, 3, 4), has_labels=True, decides=True)
    assert edges_of(plan, has_labels=True, decides=True) == expected
