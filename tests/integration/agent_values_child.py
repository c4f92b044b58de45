"""A child that uses a real Port: `python agent_values_child.py FD first|second CASE`.

The first sends the values of a case one after the other and compares what comes back with what it sent, bit for bit;
the second sends each back as it came. The first value of a case goes by the agents, the others by a shorter way if
there is one.
"""

from __future__ import annotations

import mmap
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire import tree
from pipesvc.wire.links import Link
from pipesvc.wire.tensors import TORCH_DTYPES
from pipesvc.worker.local_socket import ChildEnd
from pipesvc.worker.port import ParcelArrived, Port

FORWARD: Final = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)
BACK: Final = Link(1, 0, types_pb2.LINK_KIND_ACTIVATION)
SIZES: Final = (3_900_000, 4_100_000, 300_000_000, (2 << 30) + 12_345)
STRIDE: Final = 1_000_003
INT8: Final = types_pb2.CODEC_INT8


def several_dtypes() -> Iterator[Any]:
    for rows in (2, 3_000):
        half = torch.randn(rows, 7).bfloat16()
        yield (
            torch.randn(rows, 5),
            half,
            {"count": torch.arange(rows, dtype=torch.uint8), "f64": torch.randn(rows).double()},
        )


def lengths() -> Iterator[Any]:
    """Each shorter one after a longer one, in memory that the longer one had."""
    for length in (128, 129, 5, 9, 3, 129, 128):
        yield torch.randn(8, length, 64), torch.randint(100, (8, length)), torch.ones(8, length, dtype=torch.bool)


def bits(dtype: torch.dtype, *shape: int) -> Tensor:
    """Any bit pattern, NaN payloads too; a bool must be 0 or 1."""
    raw = torch.randint(0, 256, (dtype.itemsize * torch.Size(shape).numel(),), dtype=torch.uint8)
    if dtype == torch.bool:
        raw &= 1
    return raw.view(dtype).view(shape) if len(raw) else torch.empty(shape, dtype=dtype)


def all_dtypes() -> Iterator[Any]:
    for dtype in TORCH_DTYPES.values():
        yield [
            bits(dtype, 3, 4),
            bits(dtype),
            bits(dtype, 2, 0, 3),
            bits(dtype, 200, 300),  # in memory of its own, as those below
            bits(dtype, 200, 300).t(),
            bits(dtype, 300, 1).expand(300, 200),
            bits(dtype, 300, 400)[1::2, ::3],
        ]


def counters() -> Iterator[Any]:
    for number in (0, 1, 2**53 + 1, 2**63 - 1, -(2**63)):
        yield {"num_batches_tracked": torch.tensor(number), "many": torch.full((5_000,), number)}


def through_int8() -> Iterator[Any]:
    for num in (1, 257, 50_000):
        ramp = torch.arange(num, dtype=torch.float32)
        for special in (float("inf"), float("nan")):
            yield torch.where(ramp == num - 1, special, ramp)
        yield torch.zeros(num), torch.full((num,), 1e-40), torch.full((num,), 3.25), ramp


def marks(size: int) -> Tensor:
    return torch.arange(len(range(0, size, STRIDE))).remainder(251).to(torch.uint8)


def large() -> Iterator[Any]:
    yield torch.ones(1)
    for size in SIZES:
        value = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)  # pages that nobody writes cost nothing
        value[::STRIDE] = marks(size)
        yield value


def is_same(one: Any, other: Any) -> bool:
    first, leaves = tree.flatten(one, lambda leaf: isinstance(leaf, Tensor))
    second, others = tree.flatten(other, lambda leaf: isinstance(leaf, Tensor))
    return first == second and all(
        (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) and torch.equal(as_bytes(a), as_bytes(b))
        for a, b in zip(leaves, others, strict=True)
    )


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def is_near(one: Any, other: Any) -> bool:
    """What is not finite bit for bit, all else within half a 127th of the largest of 256 neighbours (and rounding)."""
    if isinstance(one, Tensor):
        return is_same(one, other)
    return all(bool(((a - b).abs() <= block_of(a) / 253.9 + 2.0**-126).all()) for a, b in zip(one, other, strict=True))


def block_of(tensor: Tensor) -> Tensor:
    return torch.cat([each.abs().max().expand_as(each) for each in torch.split(tensor, 256)])


def is_marked(one: Any, other: Any) -> bool:
    """The second sends no large tensor back, but what is at its marks."""
    return torch.equal(other, one if len(one) == 1 else marks(len(one)))


CASES: Final[dict[str, tuple[Callable[[], Iterable[Any]], Callable[[Any, Any], bool], int]]] = {
    "several dtypes": (several_dtypes, is_same, types_pb2.CODEC_NONE),
    "lengths": (lengths, is_same, types_pb2.CODEC_NONE),
    "all dtypes": (all_dtypes, is_same, types_pb2.CODEC_NONE),
    "counters": (counters, is_same, types_pb2.CODEC_NONE),
    "through int8": (through_int8, is_near, INT8),
    "large": (large, is_marked, types_pb2.CODEC_NONE),
}


def next_parcel(port: Port) -> ParcelArrived:
    events = port.poll(60.0)
    assert len(events) == 1, f"{len(events)} parcels came in time"
    assert isinstance(events[0], ParcelArrived)
    return events[0]


def first(port: Port, case: str) -> None:
    make, is_right, codec = CASES[case]
    for number, value in enumerate(make()):
        port.send_parcel(FORWARD, 1, number, value, codec)
        back = next_parcel(port)
        port.consumed(BACK)
        assert back.micro_batch == number
        assert is_right(value, back.value()), f"value {number} of {case}"


def second(port: Port, case: str) -> None:
    for number, _ in enumerate(CASES[case][0]()):
        arrived = next_parcel(port)
        port.consumed(FORWARD)
        value = arrived.value()
        if case == "large" and number:
            value = value[::STRIDE].clone()
        port.send_parcel(BACK, 1, arrived.micro_batch, value)
        del arrived, value


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    descriptor, which, the_case = sys.argv[1:]
    torch.manual_seed(0)
    own_port = Port(ChildEnd(socket.socket(fileno=int(descriptor))))
    {"first": first, "second": second}[which](own_port, the_case)
    own_port.report_counts()
    own_port.report(local_pb2.FromChild(ready=local_pb2.Ready(fingerprint=which)))
    while True:  # until the other end closes
        own_port.poll(None)
