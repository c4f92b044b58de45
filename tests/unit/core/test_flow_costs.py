"""What a flow's values, ties and copies cost in a plan: who sends what to whom, who holds what, who waits for whom."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest

from pipesvc.core.actions import ActionKind
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.costs_json import from_json as costs_from_json
from pipesvc.core.costs_json import to_json as costs_to_json
from pipesvc.core.flow import Flow, Joined, Value, check_ends, crossing_bytes, finest_ends
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo, SharedParameter
from pipesvc.core.memory import Held, device_memory
from pipesvc.core.simulate import simulate
from pipesvc.core.stage_costs import StageCost, gradients_between, outputs_between, stage_costs
from pipesvc.errors import PipesvcError
from tests.unit.core.random_flows import random_flow, sent_over, with_flow

LAYERS = tuple(LayerCost(name=name, parameter_bytes=1, gradient_bytes=1) for name in "abcd")


def value(key: str, producer: int, *users: int, num_bytes: int, is_differentiable: bool = True) -> Value:
    return Value(
        key=key,
        producer=producer,
        users=users,
        shape=(),
        dtype="float32",
        num_bytes=num_bytes,
        is_differentiable=is_differentiable,
    )


# a makes a skip for c and d; b needs nothing of a.
FLOW = Flow(
    units=tuple(LayerInfo(name=name, type="") for name in "abcd"),
    values=(
        value("1.0.0", 0, 2, 3, num_bytes=100),
        value("2.0.0", 1, 2, num_bytes=10),
        value("3.0.0", 2, 3, num_bytes=7, is_differentiable=False),
    ),
    input_users={},
    parameters={"a.weight": (0, 3), "frozen": (0, 1)},
    shared=(
        SharedParameter(name="a.weight", num_bytes=1000, is_trained=True),
        SharedParameter(name="frozen", num_bytes=500, is_trained=False),
    ),
)


def costs(*workers: str, link: LinkCost | None = None) -> Costs:
    times = LayerTimes(forward_s=(1.0,) * 4, backward_s=(2.0,) * 4, update_s=(0.0,) * 4)
    return Costs(
        layers=LAYERS,
        devices=tuple(DeviceCost(worker=worker, device="cpu", times=times) for worker in workers),
        default_link=link or LinkCost(),
        flow_json=to_json(FLOW),
    )


def staged(*workers: str, link: LinkCost | None = None) -> tuple[StageCost, ...]:
    """Each unit a stage."""
    return stage_costs(costs(*workers, link=link), boundaries=[1, 2, 3], devices=range(4))


def test_values_go_straight_to_their_users_and_gradients_from_user_to_user() -> None:
    stages = staged(*"wxyz")
    assert outputs_between(stages) == {(0, 2): 100, (0, 3): 100, (1, 2): 10, (2, 3): 7}
    # The gradient of the skip visits c on its way to a; that of the shared weight goes from d to a.
    assert gradients_between(stages) == {(3, 2): 100, (2, 0): 100, (2, 1): 10, (3, 0): 1000}
    both = stage_costs(costs(*"wx"), boundaries=[2], devices=range(2))
    assert outputs_between(both) == {(0, 1): 110}
    assert gradients_between(both) == {(1, 0): 1110}


def test_each_further_holder_of_a_shared_parameter_has_a_copy() -> None:
    found = [(stage.weight_bytes, stage.gradient_bytes, stage.optimizer_bytes) for stage in staged(*"wxyz")]
    assert found == [(1, 1, 0), (501, 1, 0), (1, 1, 0), (1001, 1001, 0)]
    (whole,) = stage_costs(costs("w"), boundaries=[], devices=[0])
    assert (whole.weight_bytes, whole.gradient_bytes, whole.optimizer_bytes) == (4, 4, 0)


def test_gradients_of_what_layers_of_a_list_share_go_down_too() -> None:
    table = SharedParameter(name="table", num_bytes=1000, is_trained=True)
    layers = [replace(layer, output_bytes=10, output_gradient_bytes=20) for layer in LAYERS]
    layers[0], layers[2] = replace(layers[0], shared=(table,)), replace(layers[2], shared=(table,))
    tied = replace(costs(*"wxyz"), layers=tuple(layers), flow_json="")
    stages = stage_costs(tied, boundaries=[1, 2, 3], devices=range(4))
    assert outputs_between(stages) == {(0, 1): 10, (1, 2): 10, (2, 3): 10}
    assert gradients_between(stages) == {(1, 0): 20, (2, 1): 20, (3, 2): 20, (2, 0): 1000}


def test_a_stage_replays_what_is_before_it_once() -> None:
    known = costs(*"wx")
    times = replace(known.devices[0].times, skip_s=(0.0, 0.1, 0.2, 0.4))
    known = replace(known, devices=tuple(replace(device, times=times) for device in known.devices))
    stages = stage_costs(known, boundaries=[2], devices=range(2))
    assert [stage.forward_s for stage in stages] == [2.0, 2.2]


def test_a_receiver_holds_what_may_come_from_each_sender() -> None:
    memory = device_memory(staged(*"wxyz"), {0: 4, 1: 3, 2: 2, 3: 1})
    assert memory["y/cpu"].link_slots == (Held(4, 100), Held(3, 10), Held(2, 100))
    assert memory["x/cpu"].link_slots == (Held(3, 10),)
    beside = device_memory(staged("w", "x", "w", "z"), {0: 4, 1: 3, 2: 2, 3: 1})
    assert (4, 100) not in beside["w/cpu"].link_slots, "a stage of the same worker sends nothing"


def test_a_stage_waits_for_its_makers_alone() -> None:
    link = LinkCost(latency_s=0.5)
    played = simulate("GPipe", staged(*"wxyz", link=link), num_micro_batches=1, link=lambda a, b: link)
    begins = {str(action): start_s for action, start_s in zip(played.actions, played.starts_s, strict=True)}
    assert (begins["0F0"], begins["1F0"]) == (0.0, 0.0)
    assert begins["2F0"] == 1.5
    assert begins["3F0"] == 3.0
    assert begins["1B0"] == begins["2B0"] + 2.5
    assert begins["0B0"] == max(begins["2B0"], begins["3B0"]) + 2.5
    assert played.link_bytes == {
        ("w", "y"): 100,
        ("w", "z"): 100,
        ("x", "y"): 10,
        ("y", "z"): 7,
        ("z", "y"): 100,
        ("y", "w"): 100,
        ("y", "x"): 10,
        ("z", "w"): 1000,
    }


@pytest.mark.parametrize("schedule", ["naive", "GPipe", "1F1B", "Interleaved1F1B", "ZBH1", "ZBV"])
def test_every_schedule_gets_through_every_flow(schedule: str) -> None:
    rng = random.Random(3)
    workers = {"Interleaved1F1B": "wxwx", "ZBV": "wxxw"}.get(schedule, "wxyz")
    for _ in range(50):
        plain = replace(costs(*workers), flow_json="")
        found = with_flow(rng, plain)
        assert found.flow is not None
        free = replace(found, flow_json=to_json(replace(found.flow, joined=())))
        stages = stage_costs(free, boundaries=[1, 2, 3], devices=range(4))
        chain = stage_costs(plain, boundaries=[1, 2, 3], devices=range(4))
        played = simulate(schedule, stages, num_micro_batches=4)
        assert played.step_s <= simulate(schedule, chain, num_micro_batches=4).step_s
        assert sum(action.kind is ActionKind.FORWARD for action in played.actions) == 16


def test_what_crosses_a_cut_is_what_that_cut_alone_would_send() -> None:
    rng = random.Random(1)
    for num_units in (1, 2, 3, 5, 8):
        layers = tuple(LayerCost(name=str(index)) for index in range(num_units))
        for _ in range(200):
            flow = random_flow(rng, layers)
            inner = [sent_over(flow, cut) for cut in range(1, num_units)]
            assert crossing_bytes(flow) == [(0, 0), *inner, (0, 0)]


def test_the_finest_ends_allow_what_check_ends_allows() -> None:
    rng = random.Random(2)
    for _ in range(300):
        flow = random_flow(rng, tuple(LayerCost(name=str(index)) for index in range(rng.randint(1, 5))))
        num_units, finest = len(flow.units), finest_ends(flow)
        check_ends(flow, finest)
        for size in range(num_units):
            for inner in combinations(range(1, num_units), size):
                try:
                    check_ends(flow, (*inner, num_units))
                except PipesvcError:
                    assert not set(inner) <= set(finest)
                else:
                    assert set(inner) <= set(finest)


def test_costs_of_a_flow_survive_their_text() -> None:
    found = costs(*"wx")
    assert costs_from_json(costs_to_json(found)) == found
    with pytest.raises(PipesvcError, match="the text of costs has a flow of other units than its layers"):
        costs_from_json(costs_to_json(replace(found, layers=LAYERS[1:], devices=())))


def test_units_joined_before_the_first_count_from_it() -> None:
    joined = (Joined(first=-1, last=1, reason="", advice=""),)
    assert finest_ends(replace(FLOW, joined=joined)) == (2, 3, 4)
