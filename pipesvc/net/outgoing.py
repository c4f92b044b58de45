"""What is handed to the sending end of a link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipesvc.rpc.v1 import types_pb2

Acknowledged = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingTensor:
    """One tensor of a parcel, or a marker without bytes: an empty parcel (0 of 0) or a gradient that does not exist.

    The bytes in `view` must stay as they are until `on_acknowledged` is called. `structure` belongs to value 0.
    """

    step: int
    micro_batch: int
    value: int
    num_values: int
    view: memoryview
    on_acknowledged: Acknowledged
    structure: str = ""
    element_type: int = types_pb2.ELEMENT_TYPE_UNSPECIFIED
    shape: tuple[int, ...] = ()
    requires_grad: bool = False
    is_no_gradient: bool = False
    codec: int = types_pb2.CODEC_NONE
    relative_error: float = 0.0  # that coding has made; 0 where it was not measured
