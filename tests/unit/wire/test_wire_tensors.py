"""Every tensor type goes over as the same bytes, type and shape, and its memory comes back with its last user."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.elements import ELEMENT_BYTES
from pipesvc.wire.segments import SegmentPool
from pipesvc.wire.tensors import TORCH_DTYPES, copy_into, element_type_of, from_buffer, num_bytes, tensor_bytes

# Types of torch that do not travel, each group with its reason.
EXCLUDED = {
    "a quantized tensor is more than its bytes: it has a scale and a zero point": {
        torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4,
    },
    "elements smaller than a byte, or bits without a meaning: shells that no layer computes with": {
        *(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)),
        torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2, torch.float4_e2m1fn_x2,
    },
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def all_torch_dtypes() -> set[torch.dtype]:
    return {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bit pattern, NaN payloads too; a bool must be 0 or 1."""
    size = dtype.itemsize * torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(size)
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        raw &= 1
    return raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes in logical order, element by element: apart from the code under test."""
    flat = [tensor[index] for index in itertools.product(*(range(size) for size in tensor.shape))]
    return b"".join(element.clone().reshape(1).view(torch.uint8).numpy().tobytes() for element in flat)


FORMS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "contiguous": lambda dtype: random_tensor(dtype, 3, 4),
    "0-dim": lambda dtype: random_tensor(dtype),
    "zero-size": lambda dtype: random_tensor(dtype, 2, 0, 3),
    "transposed": lambda dtype: random_tensor(dtype, 3, 4).t(),
    "expanded": lambda dtype: random_tensor(dtype, 3, 1).expand(3, 5),
    "expanded 0-dim": lambda dtype: random_tensor(dtype).expand(2, 2),
    "strided": lambda dtype: random_tensor(dtype, 6, 8)[1::2, ::3],
    "offset": lambda dtype: random_tensor(dtype, 5, 2)[3],
    "permuted": lambda dtype: random_tensor(dtype, 2, 3, 4).permute(2, 0, 1),
}


def over_view(tensor: torch.Tensor) -> torch.Tensor:
    return from_buffer(memoryview(bytearray(tensor_bytes(tensor))), element_type_of(tensor), tensor.shape)


def over_copy(tensor: torch.Tensor) -> torch.Tensor:
    buffer = memoryview(bytearray(num_bytes(tensor)))
    copy_into(tensor, buffer)
    return from_buffer(buffer, element_type_of(tensor), tensor.shape)


def over_misaligned_memory(tensor: torch.Tensor) -> torch.Tensor:
    buffer = memoryview(bytearray(num_bytes(tensor) + 1))[1:]
    copy_into(tensor, buffer)
    return from_buffer(buffer, element_type_of(tensor), tensor.shape)


def over_read_only_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return from_buffer(memoryview(bytes(tensor_bytes(tensor))), element_type_of(tensor), tensor.shape)


def test_the_table_is_total_over_both_enums() -> None:
    assert set(TORCH_DTYPES) == set(types_pb2.ElementType.values()) - {types_pb2.ELEMENT_TYPE_UNSPECIFIED}
    assert len(set(TORCH_DTYPES.values())) == len(TORCH_DTYPES)
    assert set(TORCH_DTYPES.values()).isdisjoint(set().union(*EXCLUDED.values()))
    assert set(TORCH_DTYPES.values()).union(*EXCLUDED.values()) == all_torch_dtypes()


def test_names_and_sizes_are_torchs() -> None:
    for element_type, dtype in TORCH_DTYPES.items():
        name = types_pb2.ElementType.Name(element_type).removeprefix("ELEMENT_TYPE_").lower()
        assert str(dtype) == f"torch.{name}"
        assert dtype.itemsize == ELEMENT_BYTES[element_type]


@pytest.mark.parametrize("way", [over_view, over_copy, over_misaligned_memory, over_read_only_bytes])
@pytest.mark.parametrize("form", FORMS)
def test_n16_round_trip_of_every_type(form: str, way: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for dtype in TORCH_DTYPES.values():
        tensor = FORMS[form](dtype)
        again = way(tensor)
        assert again.dtype == tensor.dtype
        assert again.shape == tensor.shape
        assert again.is_contiguous()
        assert bytes_of(again) == bytes_of(tensor), dtype


def test_n16_conjugated_negated_and_sharing_gradients() -> None:
    tensor = torch.randn(2, 3, dtype=torch.complex64, requires_grad=True)
    for lazy in (tensor.conj(), tensor.conj().imag):
        for way in (over_view, over_copy):
            again = way(lazy)
            assert torch.equal(again, lazy.detach())
            assert not again.requires_grad


def test_n29_an_int64_counter_is_exact() -> None:
    for number in (0, 1, 2**53 + 1, 2**63 - 1, -(2**63)):
        counter = torch.tensor(number)
        assert counter.dtype == torch.int64
        assert over_view(counter).item() == number


def test_contiguous_tensors_are_not_copied_on_the_way_out() -> None:
    tensor = torch.zeros(4)
    view = tensor_bytes(tensor)
    tensor[0] = 1
    assert bytes(view[:4]) == b"\x00\x00\x80\x3f"


def test_the_received_tensor_is_the_memory_itself_and_aligned() -> None:
    memory = bytearray(16)
    tensor = from_buffer(memoryview(memory), types_pb2.ELEMENT_TYPE_FLOAT32, (4,))
    memory[0:4] = b"\x00\x00\x80\x3f"
    assert tensor[0] == 1
    tensor[1] = 1
    assert memory[4:8] == b"\x00\x00\x80\x3f"
    off = from_buffer(memoryview(bytearray(17))[1:], types_pb2.ELEMENT_TYPE_FLOAT32, (4,))
    assert off.data_ptr() % 4 == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 2).to_sparse(),
        lambda: torch.zeros(2, device="meta"),
        lambda: torch.zeros(2, dtype=torch.bits8),
    ],
)
def test_other_tensors_are_refused(make: Callable[[], torch.Tensor]) -> None:
    for use in (tensor_bytes, lambda tensor: copy_into(tensor, memoryview(bytearray(4)))):
        with pytest.raises(PipesvcError, match="cannot travel between stages") as caught:
            use(make())
        assert caught.value.code is ErrorCode.INVALID_JOB


def test_quantized_tensors_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
    with pytest.raises(PipesvcError, match="tensor of qint8"):
        tensor_bytes(tensor)


def test_sizes_and_numbers_that_do_not_fit_are_refused() -> None:
    buffer = memoryview(bytearray(8))
    with pytest.raises(PipesvcError, match=r"a float32 tensor of shape \[3\] has 12 bytes, the buffer has 8"):
        from_buffer(buffer, types_pb2.ELEMENT_TYPE_FLOAT32, (3,))
    with pytest.raises(PipesvcError, match=r"a float32 tensor of shape \[1\] has 4 bytes, the buffer has 8"):
        copy_into(torch.zeros(1), buffer)
    with pytest.raises(PipesvcError, match="unknown element type number 99"):
        from_buffer(buffer, 99, (8,))


def test_read_only_memory_is_not_written_to() -> None:
    with pytest.raises(TypeError):
        copy_into(torch.zeros(1), memoryview(bytes(4)))


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x,
        lambda x: x[1:, :2],
        lambda x: x.detach().view(torch.int32),
        lambda x: [x.t()],
        lambda x: x.numpy(),
        lambda x: x.requires_grad_().pow(2),
        lambda x: (torch.ones(4, 4, requires_grad=True) * x).sum(),
        lambda x: torch.nn.functional.linear(x, torch.ones(3, 4, requires_grad=True)).relu(),
    ],
    ids=["itself", "slice", "other dtype", "transposed", "numpy", "saved for pow", "saved for mul", "saved for linear"],
)
def test_memory_is_given_back_with_the_last_holder(hold: Callable[[torch.Tensor], object]) -> None:
    pool = SegmentPool()
    segment = pool.allocate(64)
    view = segment.view[:64]
    finalizer = weakref.finalize(view, pool.release, segment.segment_id)
    tensor = from_buffer(view, types_pb2.ELEMENT_TYPE_FLOAT32, (4, 4))
    held = hold(tensor)
    del view, tensor
    assert finalizer.alive
    assert pool.num_in_use == 1
    del held
    assert not finalizer.alive
    assert pool.num_in_use == 0
    pool.close()


def test_backward_gives_memory_back_as_it_frees_the_graph() -> None:
    view = memoryview(bytearray(64))
    finalizer = weakref.finalize(view, lambda: None)
    weight = torch.ones(4, 4, requires_grad=True)
    loss = (from_buffer(view, types_pb2.ELEMENT_TYPE_FLOAT32, (4, 4)) * weight).sum()
    del view
    assert finalizer.alive
    torch.autograd.backward(loss)
    assert not finalizer.alive
    assert weight.grad is not None
