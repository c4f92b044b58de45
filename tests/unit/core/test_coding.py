"""Bytes of coded tensors, as a planner counts them: those that the wire has."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from pipesvc.core.coded_ways import crossing_bytes, with_codecs
from pipesvc.core.coding import Coding, PairCoding, TypedBytes, coded_bytes
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.memory import device_memory
from pipesvc.core.simulate import simulate
from pipesvc.core.stage_costs import gradients_on_links, outputs_between, outputs_on_links, stage_costs
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.elements import CODED_TYPES, ELEMENT_BYTES, codec_name, element_name, payload_bytes

MIB = 2**20
FLOATS = TypedBytes("float32", MIB)
INT8_BYTES = MIB // 4 + 4 * (MIB // 1024)
HALVES = Coding(PairCoding("int8", "bf16"))


@pytest.mark.parametrize("codec", CODED_TYPES, ids=codec_name)
@pytest.mark.parametrize("element_type", ELEMENT_BYTES, ids=element_name)
def test_every_codec_and_type_has_the_bytes_of_the_wire(codec: int, element_type: int) -> None:
    for shape in ((), (1,), (255,), (256,), (257,), (3, 1000)):
        plain = ELEMENT_BYTES[element_type] * prod(shape)
        takes = element_type in CODED_TYPES[codec]
        on_the_wire = payload_bytes(codec if takes else types_pb2.CODEC_NONE, element_type, shape)
        assert coded_bytes(codec_name(codec), TypedBytes(element_name(element_type), plain)) == min(on_the_wire, plain)


def _costs(**link: Any) -> Costs:
    times = LayerTimes(forward_s=(0.01,) * 3, backward_s=(0.02,) * 3, update_s=(0.0,) * 3)
    layer = LayerCost(
        name="",
        output_bytes=MIB,
        output_gradient_bytes=MIB,
        outputs=(FLOATS,),
        output_gradients=(FLOATS,),
    )
    # The second one gives whole numbers besides, which no codec takes and no gradient comes back for.
    second = replace(layer, output_bytes=MIB + 80, outputs=(FLOATS, TypedBytes("int64", 80)))
    return Costs(
        layers=tuple(replace(each, name=str(i)) for i, each in enumerate((layer, second, layer))),
        devices=tuple(DeviceCost(worker=name, device="cpu", times=times) for name in "abc"),
        default_link=LinkCost(**link),
    )


def test_activations_and_gradients_of_a_list_each_have_their_codec() -> None:
    costs = _costs()
    stages = stage_costs(costs, boundaries=[1, 2], devices=[0, 1, 2])
    coded = with_codecs(stages, costs, [1, 2], HALVES)
    assert outputs_on_links(coded) == {(0, 1): INT8_BYTES, (1, 2): INT8_BYTES + 80}
    assert gradients_on_links(coded) == {(1, 0): MIB // 2, (2, 1): MIB // 2}
    assert with_codecs(stages, costs, [1, 2], Coding()) == stages


def test_a_pair_with_a_codec_of_its_own_has_that_alone() -> None:
    costs = _costs()
    stages = stage_costs(costs, boundaries=[1, 2], devices=[0, 1, 2])
    coded = with_codecs(stages, costs, [1, 2], Coding(HALVES.others, {(1, 2): PairCoding("none", "int8")}))
    assert outputs_on_links(coded) == {(0, 1): INT8_BYTES, (1, 2): MIB + 80}
    assert gradients_on_links(coded) == {(1, 0): MIB // 2, (2, 1): INT8_BYTES}


def test_memory_holds_what_was_decoded_and_a_step_waits_for_what_is_coded() -> None:
    costs = _costs(bytes_per_s=50 * MIB)
    plain = stage_costs(costs, boundaries=[1], devices=[0, 1])
    coded = with_codecs(plain, costs, [1], HALVES)
    assert outputs_between(coded) == outputs_between(plain)
    assert device_memory(coded, {0: 2, 1: 1}) == device_memory(plain, {0: 2, 1: 1})
    steps = [simulate("1F1B", stages, num_micro_batches=4, link=costs.link) for stages in (plain, coded)]
    assert steps[0].link_bytes == {("a", "b"): 4 * MIB, ("b", "a"): 4 * MIB}
    assert steps[1].link_bytes == {("a", "b"): 4 * INT8_BYTES, ("b", "a"): 2 * MIB}
    assert steps[1].step_s < steps[0].step_s


def test_the_search_for_a_cut_sees_what_a_boundary_sends() -> None:
    assert crossing_bytes(_costs(), HALVES)[:2] == [(INT8_BYTES, MIB // 2), (INT8_BYTES + 80, MIB // 2)]
    assert crossing_bytes(_costs(), Coding())[:2] == [(MIB, MIB), (MIB + 80, MIB)]


def test_costs_that_do_not_tell_types_are_counted_as_they_are() -> None:
    costs = _costs()
    bare = replace(costs, layers=tuple(replace(each, outputs=(), output_gradients=()) for each in costs.layers))
    stages = stage_costs(bare, boundaries=[1], devices=[0, 1])
    assert outputs_on_links(with_codecs(stages, bare, [1], HALVES)) == {(0, 1): MIB}
    assert crossing_bytes(bare, HALVES) == crossing_bytes(bare, Coding())
