"""The child's end with a codec: smaller segments, the same trees, and whatever is not coded bit for bit."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.elements import payload_bytes
from pipesvc.worker.parcels import INLINE_PAYLOAD_BYTES
from pipesvc.worker.port import Port
from tests.unit.worker.test_port import LARGE, LINK, Peer, _one_parcel, pair

__all__ = ["pair"]

NONE, BF16, INT8 = types_pb2.CODEC_NONE, types_pb2.CODEC_BF16, types_pb2.CODEC_INT8
FLOAT32 = types_pb2.ELEMENT_TYPE_FLOAT32


def through(
    port: Port, peer: Peer, value: Any, num_tensors: int, codec: int
) -> tuple[Any, list[local_pb2.LocalTensor]]:
    port.send_parcel(LINK, 1, 0, value, codec)
    turned = peer.turn_back(num_tensors)
    return _one_parcel(port).value(), turned


def settle(port: Port, peer: Peer) -> list[int]:
    """Give back the segments that nobody uses any more; their numbers."""
    gc.collect()
    port.poll(0.0)
    released = [each.release_segment for each in peer.take_all()]
    for each in released:
        peer.tell(local_pb2.ToChild(release_segment=each))
    port.poll(0.0)
    return [each.segment_id for each in released]


def is_near(found: Tensor, exact: Tensor) -> bool:
    bound = exact.detach().abs().max() / 254 * 1.001
    return found.shape == exact.shape and bool(((found - exact).abs() <= bound).all())


@pytest.mark.parametrize("num", [1000, LARGE, 4 * LARGE])
def test_n14_floating_point_is_coded_and_all_else_arrives_as_it_was(pair: tuple[Port, Peer], num: int) -> None:
    port, peer = pair
    value = {
        "x": torch.randn(num, requires_grad=True),
        "ids": torch.arange(num),
        "mask": torch.arange(num) % 3 == 0,
        "double": torch.randn(num, dtype=torch.float64),
        "one": torch.tensor(0.1),
        "none": torch.empty(0, 3),
    }
    found, turned = through(port, peer, value, 6, INT8)
    assert is_near(found["x"], value["x"])
    assert not torch.equal(found["x"], value["x"])
    assert [name for name in value if name != "x" and not torch.equal(found[name], value[name])] == []
    assert [found[name].dtype for name in value] == [each.dtype for each in value.values()]
    by_codec = {name: local.codec for name, local in zip(value, turned, strict=True)}
    assert by_codec == {name: INT8 if name == "x" else 0 for name in value}
    assert turned[0].total_bytes == payload_bytes(INT8, FLOAT32, (num,))
    assert turned[0].requires_grad
    assert 0.0 < turned[0].relative_error < 0.02


def test_a_tensor_that_is_small_when_coded_needs_no_segment(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    found, (local,) = through(port, peer, exact := torch.randn(INLINE_PAYLOAD_BYTES // 2), 1, INT8)
    assert is_near(found, exact)
    assert local.segment_id == 0
    assert len(local.inline_payload) == local.total_bytes < INLINE_PAYLOAD_BYTES


@pytest.mark.parametrize("num", [1000, LARGE, 4 * LARGE])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_n30_a_tensor_that_is_not_finite_arrives_bit_for_bit(pair: tuple[Port, Peer], value: float, num: int) -> None:
    port, peer = pair
    exact = torch.randn(num)
    exact[7] = value
    for _ in range(3):
        port.send_gradients(LINK, 1, 0, [exact, None], INT8)
        (coded, _) = peer.turn_back(2)
        found, nothing = _one_parcel(port).leaves
        assert nothing is None
        assert found is not None
        assert torch.equal(found.view(torch.int32), exact.view(torch.int32))
        assert coded.codec == 0
        del found
        settle(port, peer)  # the segment of a codec that could not hold it is used again
        found, (coded,) = through(port, peer, torch.ones(num), 1, INT8)
        assert coded.codec == INT8
        assert torch.equal(found, torch.ones(num))
        settle(port, peer)
        assert port._parcels.num_segments_in_use == 0


def test_segments_of_coded_tensors_come_back_at_once(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    found, turned = through(port, peer, torch.randn(8 * LARGE), 1, INT8)
    assert settle(port, peer) == [turned[0].segment_id]
    assert found.sum().isfinite()


@pytest.mark.parametrize("codec", [BF16, INT8])
def test_n16_strides_and_alignment_are_those_of_the_maker(pair: tuple[Port, Peer], codec: int) -> None:
    port, peer = pair
    exact = torch.randn(200, 300)
    value = [
        exact.t(),
        exact[:, 1:],
        exact[3:4].expand(50, 300),
        torch.randn(2, 4, 30, 30).contiguous(memory_format=torch.channels_last),
    ]
    found, _ = through(port, peer, value, 4, codec)
    for there, here in zip(found, value, strict=True):
        assert there.stride() == here.stride()
        assert is_near(there, here)
        assert there.data_ptr() % 16 == here.data_ptr() % 16


def test_the_error_is_measured_of_the_first_and_of_few(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    measured = []
    for _ in range(63):
        _, (local,) = through(port, peer, torch.randn(300), 1, INT8)
        measured.append(local.relative_error > 0)
    assert [index for index, is_measured in enumerate(measured) if is_measured] == [0, 31, 62]


def test_without_a_codec_the_message_has_no_word_of_it(pair: tuple[Port, Peer]) -> None:
    port, peer = pair
    found, (local,) = through(port, peer, exact := torch.randn(300), 1, NONE)
    assert torch.equal(found, exact)
    assert (local.codec, local.relative_error, local.total_bytes) == (0, 0.0, 1200)
