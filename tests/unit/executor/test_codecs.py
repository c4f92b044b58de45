"""Training with codecs: near the plain loop, and what must be exact still is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.link_codecs import LinkCodecs, PairCodecs
from pipesvc.worker.executor.scaling import ScalerSettings
from tests.unit.executor.network import Setup, train, train_both, train_plain
from tests.unit.executor.test_equality import CUTS, OPTIMIZERS, make_batches, make_layers

NONE, BF16, FP16, INT8 = (types_pb2.Codec.Value(f"CODEC_{name}") for name in ("NONE", "BF16", "FP16", "INT8"))
# Of losses after six steps; those of int8 round activations to a 254th of the largest of 256.
TOLERANCE = {BF16: 0.01, FP16: 0.002, INT8: 0.02}


def setup(num_stages: int, codecs: LinkCodecs) -> Setup:
    return Setup(
        make_layers=make_layers,
        cuts=CUTS[num_stages],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["sgd"],
        codecs=codecs,
    )


@pytest.mark.parametrize("codec", [BF16, FP16, INT8])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_losses_are_near_those_of_a_plain_loop(num_stages: int, codec: int) -> None:
    batches = make_batches(6)
    coded = setup(num_stages, LinkCodecs(PairCodecs(codec, codec)))
    losses, (plain, _) = train(coded, batches).losses, train_plain(coded, batches)
    assert losses == pytest.approx(plain, rel=TOLERANCE[codec])
    assert losses != plain


def test_a_codec_of_gradients_leaves_the_first_loss_exact() -> None:
    batches = make_batches(3)
    coded = setup(3, LinkCodecs(PairCodecs(NONE, INT8)))
    losses, (plain, _) = train(coded, batches).losses, train_plain(coded, batches)
    assert losses[0] == plain[0]
    assert losses[1] != plain[1]


def test_none_is_bit_for_bit_and_so_is_one_worker() -> None:
    train_both(setup(3, LinkCodecs(PairCodecs(NONE, NONE))), make_batches(3))
    train_both(replace(setup(3, LinkCodecs(PairCodecs(INT8, INT8))), owners=["w", "w", "w"]), make_batches(3))


@pytest.mark.parametrize("codec", [BF16, FP16, INT8])
def test_n30_a_scaler_sees_overflows_through_codecs(codec: int) -> None:
    """The scale begins so high that gradients overflow in the last stage; the step must be skipped on the first."""
    scaler = ScalerSettings(init_scale=2.0**127, growth_factor=2.0, backoff_factor=2.0**-110, growth_interval=100)
    coded = replace(setup(2, LinkCodecs(PairCodecs(NONE, codec))), scaler=scaler)
    batches = make_batches(3)
    cluster = train(coded, batches)
    exact = train_both(replace(coded, codecs=LinkCodecs()), batches)
    assert cluster.losses[0] == exact.losses[0]
    assert cluster.losses[1:] == pytest.approx(exact.losses[1:], rel=0.02)
    assert all(bool(value.isfinite().all()) for value in cluster.state().values() if value.is_floating_point())
    assert torch.isfinite(torch.tensor(cluster.losses)).all()
