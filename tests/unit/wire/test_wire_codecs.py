"""Codecs keep what they promise: the sizes, the bounds, and that nothing becomes infinite or finite on the way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire import codecs, tensors
from pipesvc.wire.elements import BLOCK_ELEMENTS, CODED_TYPES, codec_name, payload_bytes
from pipesvc.wire.frames import FrameHeader, decode, encode

NONE, BF16, FP16, INT8 = (types_pb2.Codec.Value(f"CODEC_{name}") for name in ("NONE", "BF16", "FP16", "INT8"))
CODED = (BF16, FP16, INT8)
ROUNDING = 2**-22  # of float32, relative
SIZES = (1, 2, 255, 256, 257, 512, 1000, 3 * BLOCK_ELEMENTS + 17)


def round_trip(tensor: Tensor, codec: int) -> Tensor:
    """Through memory of exactly the promised size."""
    element_type = tensors.element_type_of(tensor)
    view = memoryview(bytearray(payload_bytes(codec, element_type, tensor.shape)))
    assert codecs.encode(tensor, codec, view)
    decoded = codecs.decode(view, codec, element_type, tensor.shape)
    assert decoded.shape == tensor.shape
    assert decoded.dtype == tensor.dtype
    return decoded


def scales_of(tensor: Tensor) -> Tensor:
    """For each element, the scale that its block has by the documentation."""
    flat = tensor.double().reshape(-1)
    blocks = [
        block.abs().max().div(127).clamp(min=2.0**-126).expand_as(block) for block in torch.split(flat, BLOCK_ELEMENTS)
    ]
    return torch.cat(blocks).view(tensor.shape)


def bound(tensor: Tensor, codec: int) -> Tensor:
    exact = tensor.double().abs()
    if codec == INT8:
        own = {torch.float32: ROUNDING, torch.float16: 2**-11, torch.bfloat16: 2**-8}[tensor.dtype]
        return scales_of(tensor) / 2 + own * (exact + scales_of(tensor) / 2) + 2**-25 * (own > ROUNDING)
    if codec == BF16:
        return exact * 2**-8
    return (exact * 2**-11).clamp(min=2**-25)


def test_tables_are_total() -> None:
    numbers = set(types_pb2.Codec.values()) - {types_pb2.CODEC_UNSPECIFIED}
    assert set(CODED_TYPES) == numbers
    assert numbers == {NONE, *CODED}


@pytest.mark.parametrize("codec", CODED, ids=codec_name)
@pytest.mark.parametrize("num", SIZES)
def test_n30_the_error_of_every_element_is_within_its_bound(codec: int, num: int) -> None:
    generator = torch.Generator().manual_seed(num)
    # Blocks of very different sizes, so that a scale of another block would show.
    tensor = torch.randn(num, generator=generator) * torch.logspace(-6, 4, num)
    difference = (round_trip(tensor, codec).double() - tensor.double()).abs()
    assert bool((difference <= bound(tensor, codec)).all())
    assert num == 1 or bool((difference > 0).any())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=600),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_n30_int8_keeps_its_bound_for_whatever_is_finite(values: list[float], dtype: torch.dtype) -> None:
    tensor = torch.tensor(values).to(dtype)
    if not tensor.isfinite().all() or tensor.abs().max() > 3.4e38 or codecs.codec_for(INT8, tensor) == NONE:
        return
    decoded = round_trip(tensor, INT8)
    assert bool(decoded.isfinite().all())
    assert bool(((decoded.double() - tensor.double()).abs() <= bound(tensor, INT8)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_int8_of_more_than_one_tile_is_the_same_block_by_block(dtype: torch.dtype) -> None:
    tensor = torch.randn(codecs._TILE + 5 * BLOCK_ELEMENTS + 3).to(dtype)
    whole = round_trip(tensor, INT8)
    parts = [round_trip(part, INT8) for part in torch.split(tensor, BLOCK_ELEMENTS)]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("codec", CODED, ids=codec_name)
def test_n30_zeros_and_the_smallest_numbers_are_no_division_by_zero(codec: int) -> None:
    assert torch.equal(round_trip(torch.zeros(300), codec), torch.zeros(300))
    smallest = round_trip(torch.full((300,), 1e-45), codec)
    assert bool((smallest.abs() <= 2.0**-126).all())


def test_n30_no_scale_is_too_small_to_divide_by() -> None:
    for value in (0.0, 1e-45, 1e-38):
        view = memoryview(bytearray(payload_bytes(INT8, types_pb2.ELEMENT_TYPE_FLOAT32, (300,))))
        assert codecs.encode(torch.full((300,), value), INT8, view)
        assert torch.frombuffer(view, dtype=torch.float32, count=2).tolist() == [2.0**-126] * 2


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("codec", CODED, ids=codec_name)
def test_n30_what_is_not_finite_is_seen_so_and_spoils_no_neighbour(codec: int, value: float) -> None:
    """A mask of -inf crosses a stage; an overflow of a gradient must be seen by the loss scaler."""
    tensor = torch.randn(2, 700)
    tensor[1, 5] = value
    room = memoryview(bytearray(payload_bytes(codec, types_pb2.ELEMENT_TYPE_FLOAT32, tensor.shape)))
    if codec == BF16:
        decoded = round_trip(tensor, codec)
        assert torch.equal(decoded.isfinite(), tensor.isfinite())
        assert torch.equal(decoded[1, 5].nan_to_num(), tensor[1, 5].bfloat16().float().nan_to_num())
    else:
        assert not codecs.encode(tensor, codec, room)


def test_n30_int8_makes_no_infinity_of_the_largest_numbers() -> None:
    largest = torch.tensor([0.0, torch.finfo(torch.float32).max])
    assert not codecs.encode(largest, INT8, memoryview(bytearray(6)))
    for dtype in (torch.float16, torch.bfloat16):
        exact = torch.tensor([0.0, torch.finfo(dtype).max, 0.0, 0.0, 0.0], dtype=dtype)
        assert torch.equal(round_trip(exact, INT8), exact)


def test_fp16_overflows_nothing() -> None:
    room = memoryview(bytearray(4))
    assert codecs.encode(torch.tensor([65504.0, -65504.0]), FP16, room)
    assert not codecs.encode(torch.tensor([0.0, 65505.0]), FP16, room)
    assert not codecs.encode(torch.tensor([-65505.0, 0.0]), FP16, room)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", tensors.TORCH_DTYPES.values(), ids=str)
def test_only_floating_point_of_at_most_32_bits_is_coded(dtype: torch.dtype) -> None:
    tensor = torch.empty(1000, dtype=dtype)
    found = {codec for codec in CODED if codecs.codec_for(codec, tensor) != NONE}
    expected = {torch.float32: {BF16, FP16, INT8}, torch.float16: {INT8}, torch.bfloat16: {INT8}}
    assert found == expected.get(dtype, set())
    assert codecs.codec_for(NONE, tensor) == NONE


@pytest.mark.parametrize("codec", CODED, ids=codec_name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_single_numbers_and_tensors_of_none_travel_as_they_are(codec: int, shape: tuple[int, ...]) -> None:
    assert codecs.codec_for(codec, torch.ones(shape)) == NONE
    assert codecs.codec_for(codec, torch.ones(2, 3)) == codec


def test_what_would_not_be_smaller_is_not_coded() -> None:
    assert codecs.codec_for(INT8, torch.ones(1)) == NONE  # 5 bytes instead of 4
    assert codecs.codec_for(INT8, torch.ones(2)) == INT8
    assert codecs.codec_for(INT8, torch.ones(4).half()) == NONE
    assert codecs.codec_for(INT8, torch.ones(5).half()) == INT8


@pytest.mark.parametrize("codec", CODED, ids=codec_name)
def test_read_only_bytes_at_any_address_are_decoded(codec: int) -> None:
    tensor = torch.randn(700)
    view = bytearray(payload_bytes(codec, types_pb2.ELEMENT_TYPE_FLOAT32, tensor.shape))
    assert codecs.encode(tensor, codec, memoryview(view))
    shifted = memoryview(b"x" + bytes(view))[1:]
    decoded = codecs.decode(shifted, codec, types_pb2.ELEMENT_TYPE_FLOAT32, tensor.shape)
    assert torch.equal(decoded, round_trip(tensor, codec))


def test_strides_of_the_source_do_not_matter_and_gradients_are_not_kept() -> None:
    tensor = torch.randn(40, 30, requires_grad=True).t()
    decoded = round_trip(tensor, INT8)
    assert torch.equal(decoded, round_trip(tensor.detach().contiguous(), INT8))
    assert not decoded.requires_grad


def test_relative_error_is_of_root_mean_squares() -> None:
    tensor = torch.tensor([3.0, 4.0])
    assert codecs.relative_error(tensor, torch.tensor([3.0, 3.5])) == pytest.approx(0.1)
    assert codecs.relative_error(torch.zeros(3), torch.zeros(3)) == 0.0
    values = torch.randn(10_000)
    assert 0.002 < codecs.relative_error(values, round_trip(values, INT8)) < 0.02


def test_n29_an_unknown_codec_is_refused_by_its_number() -> None:
    with pytest.raises(PipesvcError, match="unknown codec number 9") as caught:
        payload_bytes(9, types_pb2.ELEMENT_TYPE_FLOAT32, (2,))
    assert caught.value.code is ErrorCode.BAD_FRAME
    with pytest.raises(PipesvcError, match="codec int8 takes no int64 tensor"):
        payload_bytes(INT8, types_pb2.ELEMENT_TYPE_INT64, (2,))


@pytest.mark.parametrize("codec", [NONE, *CODED], ids=codec_name)
@pytest.mark.parametrize(("shape", "num"), [((), 1), ((0,), 0), ((3, 100), 300)])
def test_frames_take_what_a_codec_makes_and_no_other_size(codec: int, shape: tuple[int, ...], num: int) -> None:
    """Single numbers and tensors of none are not coded by us; whoever does it is understood."""
    total = {NONE: 4 * num, INT8: num + 4 * -(-num // 256)}.get(codec, 2 * num)
    header = FrameHeader(
        num_values=1, sequence=1, total_bytes=total, dtype=types_pb2.ELEMENT_TYPE_FLOAT32, shape=shape, codec=codec
    )
    assert decode(encode(header, bytes(total)))[0] == header
    with pytest.raises(PipesvcError, match="the frame announces"):
        decode(encode(replace(header, total_bytes=total + 1), bytes(total)))
    if codec != NONE:
        with pytest.raises(PipesvcError, match=f"codec {codec_name(codec)} takes no int64 tensor"):
            decode(encode(replace(header, dtype=types_pb2.ELEMENT_TYPE_INT64), bytes(total)))


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_relative_error_of_very_small_and_very_large_numbers_is_a_number(size: float) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(3)) * size
    assert 1e-4 < codecs.relative_error(values, round_trip(values, BF16)) < 2**-8
    with_infinity = torch.cat([values, torch.tensor([math.inf, math.nan])])
    assert 1e-4 < codecs.relative_error(with_infinity, round_trip(with_infinity, BF16)) < 2**-8
