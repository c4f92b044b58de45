"""Tensors are laid as their maker had them, for what torch computes of them depends on it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.wire import layouts
from pipesvc.wire.layouts import ALIGNMENT_BYTES, copy_of, pack, unpack

TENSORS = {
    "plain": torch.randn(3, 4),
    "transposed": torch.randn(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "expanded": torch.randn(3, 1).expand(3, 4),
    "a number, expanded": torch.tensor(2.5).expand(3, 4),
    "a slice": torch.randn(3, 12)[:, 4:8],
    "a slice that begins anywhere": torch.randn(3, 13)[:, 5:9],
    "rows that begin anywhere": torch.randn(5, 3)[1:],
    "one in two": torch.arange(20, dtype=torch.int16)[1::2],
    "windows": torch.randn(10).unfold(0, 4, 2),
    "numbers of 16 bytes": torch.randn(4, 3, dtype=torch.complex128).t(),
    "no dimension": torch.randn(3)[1],
    "empty": torch.randn(3, 4).t()[:0],
}


def carried(tensor: Tensor) -> Tensor:
    text, packed = pack("structure", [tensor])
    copies = [None if each is None else each.detach().clone(memory_format=torch.contiguous_format) for each in packed]
    structure, (found,) = unpack(text, copies)
    assert structure == "structure"
    assert found is not None
    return found


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("way", [carried, copy_of])
def test_values_strides_and_alignment_arrive(name: str, way: object) -> None:
    tensor = TENSORS[name]
    assert callable(way)
    found = way(tensor)
    assert torch.equal(found, tensor)
    assert found.dtype == tensor.dtype
    if tensor.numel():
        assert found.stride() == tensor.stride()
        assert found.data_ptr() % ALIGNMENT_BYTES == tensor.data_ptr() % ALIGNMENT_BYTES
        assert found.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("name", ["plain", "empty"])
def test_nearly_all_tensors_travel_as_ever(name: str) -> None:
    text, (found,) = pack("structure", [TENSORS[name]])
    assert (text, found) == ("structure", TENSORS[name])


def test_no_more_is_sent_than_the_elements() -> None:
    for tensor in TENSORS.values():
        _, (sent,) = pack("", [tensor])
        assert sent is not None
        assert sent.numel() <= tensor.numel()
    _, (sent,) = pack("", [TENSORS["a number, expanded"]])
    assert sent is not None
    assert sent.numel() == 1


def test_the_wish_for_a_gradient_is_kept() -> None:
    tensor = torch.randn(3, 4, requires_grad=True)
    _, found = pack("", [tensor.t(), tensor[:, 1:], tensor.detach().t(), None])
    assert [each if each is None else each.requires_grad for each in found] == [True, True, False, None]


def test_a_tensor_far_larger_than_its_slice_is_not_laid_out_again() -> None:
    assert layouts.layout_of(torch.empty(2, 20 << 20, dtype=torch.uint8)[:, :1]) is None
    assert layouts.layout_of(torch.empty(2, 10 << 20, dtype=torch.uint8)[:, :1]) is not None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}x\n",
        '{"1":[0,[2],[1]]}\n',
        '{"0":[0,[2],[1,1]]}\n',
        '{"0":[0,[2],[-1]]}\n',
        '{"0":[-1,[2],[1]]}\n',
        '{"0":[0,[2],[true]]}\n',
        '{"0":[0,[0],[1]]}\n',
        '{"0":[0,[3],[1]]}\n',
        '{"0":[0,[2],[100000000]]}\n',
        '{"0":[100000000,[2],[1]]}\n',
        '{"x":[0,[2],[1]]}\n',
        '{"-1":[0,[2],[1]]}\n',
    ],
)
def test_layouts_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(PipesvcError) as caught:
        unpack(text, [torch.randn(2)])
    assert caught.value.code is ErrorCode.BAD_FRAME


def test_more_layouts_than_a_header_holds_are_refused() -> None:
    with pytest.raises(PipesvcError, match="structure and layouts of 5000 tensors") as caught:
        pack("", [torch.randn(3, 4).t()] * 5000)
    assert caught.value.code is ErrorCode.INVALID_JOB
