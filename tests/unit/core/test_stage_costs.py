"""Costs of layers, summed up per stage."""

from __future__ import annotations

from pipesvc.core.actions import ActionKind
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes
from pipesvc.core.stage_costs import StageCost, stage_costs


def test_a_stage_is_the_sum_of_its_layers_on_its_device() -> None:
    layers = tuple(
        LayerCost(
            name=str(index),
            parameter_bytes=10**index,
            gradient_bytes=2 * 10**index,
            optimizer_bytes=3 * 10**index,
            buffer_bytes=4 * 10**index,
            activation_bytes=5 * 10**index,
            output_bytes=6 * 10**index,
            output_gradient_bytes=7 * 10**index,
        )
        for index in range(3)
    )
    slow = LayerTimes(forward_s=(1, 2, 4), backward_s=(10, 20, 40), update_s=(100, 200, 400))
    fast = LayerTimes(forward_s=(0.5, 1, 2), backward_s=(5, 10, 20), update_s=(50, 100, 200))
    devices = (
        DeviceCost(worker="a", device="cpu", times=slow),
        DeviceCost(worker="b", device="cuda:0", times=fast, memory_bytes=99),
    )
    assert stage_costs(Costs(layers=layers, devices=devices), boundaries=[1], devices=[1, 0]) == (
        StageCost(
            worker="b",
            device="cuda:0",
            memory_bytes=99,
            forward_s=0.5,
            backward_s=5,
            input_backward_s=5,
            weight_backward_s=0,
            update_s=50,
            weight_bytes=1,
            gradient_bytes=2,
            optimizer_bytes=3,
            buffer_bytes=4,
            activation_bytes=5,
            output_bytes=6,
            output_gradient_bytes=7,
        ),
        StageCost(
            worker="a",
            forward_s=6,
            backward_s=60,
            input_backward_s=60,
            weight_backward_s=0,
            update_s=600,
            weight_bytes=110,
            gradient_bytes=220,
            optimizer_bytes=330,
            buffer_bytes=440,
            activation_bytes=550,
        ),
    )


def test_every_kind_of_action_has_its_time() -> None:
    stage = StageCost(worker="a", forward_s=1, backward_s=6, update_s=2, norm_s=3, decide_s=4)
    assert [stage.seconds(kind) for kind in ActionKind] == [1, 6, 3, 3, 3, 4, 2]
    split = StageCost(worker="a", forward_s=1, backward_s=6, input_backward_s=2.5, weight_backward_s=4)
    assert split.seconds(ActionKind.INPUT_BACKWARD) == 2.5
    assert split.seconds(ActionKind.WEIGHT_BACKWARD) == 4
