"""What a child of any role needs of its port: the seam where tests put an in-memory port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.port import ParcelArrived


class PortLike(Protocol):
    """`pipesvc.worker.port.Port` is the real one and documents each method."""

    def fileno(self) -> int: ...

    def poll(self, timeout_s: float | None) -> Sequence[local_pb2.ToChild | ParcelArrived]: ...

    def send_parcel(self, link: Link, step: int, micro_batch: int, value: Any, codec: int = ...) -> None: ...

    def send_gradients(
        self, link: Link, step: int, micro_batch: int, grads: Sequence[Tensor | None], codec: int = ...
    ) -> None: ...

    def consumed(self, link: Link) -> None: ...

    def credit_ns(self) -> int: ...

    def has_room(self, link: Link) -> bool: ...

    def way_of(self, link: Link) -> int: ...

    def report(self, message: local_pb2.FromChild) -> None: ...
