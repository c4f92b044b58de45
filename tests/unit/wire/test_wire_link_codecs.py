"""Which links are coded, and which never are."""

from __future__ import annotations

import pytest

from pipesvc.client.codec import Codec
from pipesvc.client.spec import _codec_messages
from pipesvc.rpc.v1 import job_pb2, types_pb2
from pipesvc.wire.link_codecs import LinkCodecs, codec_faults, unknown_pairs
from pipesvc.wire.links import KIND_NAMES, Link

NONE, BF16, FP16, INT8 = (types_pb2.Codec.Value(f"CODEC_{name}") for name in ("NONE", "BF16", "FP16", "INT8"))


def strategy(codec: Codec) -> job_pb2.StrategySpec:
    return job_pb2.StrategySpec(codecs=_codec_messages(codec))


@pytest.mark.parametrize("kind", KIND_NAMES, ids=KIND_NAMES.values())
def test_only_activations_and_their_gradients_are_coded(kind: int) -> None:
    codecs = LinkCodecs.of_strategy(strategy(Codec(activations="int8", gradients="bf16")))
    expected: dict[int, int] = {types_pb2.LINK_KIND_ACTIVATION: INT8, types_pb2.LINK_KIND_GRADIENT: BF16}
    assert codecs.of(Link(0, 1, kind)) == expected.get(kind, NONE)
    assert LinkCodecs().of(Link(0, 1, kind)) == NONE


def test_a_pair_of_stages_has_its_own_in_both_directions() -> None:
    links = {"1>2": Codec(activations="fp16"), "0>3": Codec(gradients="int8")}
    codecs = LinkCodecs.of_strategy(strategy(Codec(activations="int8", gradients="bf16", links=links)))
    found = {text: codecs.of(Link.parse(text)) for text in ("0>1/activation", "1>2/activation", "0>3/activation")}
    assert found == {"0>1/activation": INT8, "1>2/activation": FP16, "0>3/activation": NONE}
    found = {text: codecs.of(Link.parse(text)) for text in ("1>0/gradient", "2>1/gradient", "3>0/gradient")}
    assert found == {"1>0/gradient": BF16, "2>1/gradient": NONE, "3>0/gradient": INT8}


def test_what_the_client_writes_has_no_fault() -> None:
    written = strategy(Codec(activations="int8", links={"0>1": Codec(), "1>2": Codec(gradients="fp16")}))
    assert list(codec_faults(written)) == []
    assert unknown_pairs(written, [(0, 1), (1, 0), (2, 1)]) == []
    assert unknown_pairs(written, [(0, 1), (1, 0)]) == [(1, 2)]
