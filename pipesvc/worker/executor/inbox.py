"""Parcels that have come but are not needed yet, by link, step and micro-batch.

Stages that share a worker hand parcels to each other here, without the port; those are not credited to a sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.wire import tree
from pipesvc.wire.links import Link


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """One link's tensors for one micro-batch. `requires_grad` says which leaves did at the producer."""

    leaves: tuple[Tensor | None, ...]
    requires_grad: tuple[bool, ...]
    structure: str
    is_local: bool

    def value(self) -> Any:
        """The nest that was sent."""
        return tree.unflatten(self.structure, self.leaves)

    def as_made(self) -> list[Tensor | None]:
        """The leaves, each wanting a gradient where its maker's did."""
        pairs = zip(self.leaves, self.requires_grad, strict=True)
        return [None if leaf is None else leaf.detach().requires_grad_(wants) for leaf, wants in pairs]


class Inbox:
    """A parcel is put once and taken once."""

    def __init__(self) -> None:
        self._parcels: dict[tuple[Link, int, int], Parcel] = {}

    def __len__(self) -> int:
        return len(self._parcels)

    def has(self, link: Link, step: int, micro_batch: int) -> bool:
        return (link, step, micro_batch) in self._parcels

    def put(self, link: Link, step: int, micro_batch: int, parcel: Parcel) -> None:
        key = (link, step, micro_batch)
        if key in self._parcels:
            raise PipesvcError(
                ErrorCode.INTERNAL,
                f"two parcels on link {link}",
                where=Where(step=step, stage=link.consumer, micro_batch=micro_batch),
            )
        self._parcels[key] = parcel

    def take(self, link: Link, step: int, micro_batch: int) -> Parcel:
        return self._parcels.pop((link, step, micro_batch))
