"""What a stage gives to others: over the port, or straight into the inbox when the reader is a stage of this worker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from pipesvc.wire import layouts, tree
from pipesvc.wire.link_codecs import LinkCodecs
from pipesvc.wire.links import Link
from pipesvc.worker.executor.inbox import Inbox, Parcel
from pipesvc.worker.port_like import PortLike


class Outbox:
    """`local_stages` are the stages of this worker, between which nothing is coded."""

    def __init__(self, port: PortLike, inbox: Inbox, local_stages: Collection[int], codecs: LinkCodecs) -> None:
        self._port = port
        self._inbox = inbox
        self._local_stages = frozenset(local_stages)
        self._codecs = codecs

    def send(self, link: Link, step: int, micro_batch: int, value: Any) -> None:
        """Tensors leave as CPU tensors; a stage of this worker gets copies: its first operation may be in place."""
        structure, leaves = tree.flatten(value, lambda leaf: isinstance(leaf, Tensor))
        if link.consumer in self._local_stages:
            parcel = Parcel(
                leaves=tuple(map(layouts.copy_of, leaves)),
                requires_grad=tuple(leaf.requires_grad for leaf in leaves),
                structure=structure,
                is_local=True,
            )
            self._inbox.put(link, step, micro_batch, parcel)
        else:
            if not all(each.is_cpu for each in leaves):
                on_cpu = [each.detach().cpu().requires_grad_(each.requires_grad) for each in leaves]
                value = tree.unflatten(structure, on_cpu)
            self._port.send_parcel(link, step, micro_batch, value, self._codecs.of(link))

    def send_gradients(self, link: Link, step: int, micro_batch: int, gradients: Sequence[Tensor | None]) -> None:
        """One for each tensor of the activation; None where it got no gradient."""
        if link.consumer in self._local_stages:
            flags = (False,) * len(gradients)
            parcel = Parcel(leaves=tuple(gradients), requires_grad=flags, structure="", is_local=True)
            self._inbox.put(link, step, micro_batch, parcel)
        else:
            on_cpu = [None if gradient is None else gradient.cpu() for gradient in gradients]
            self._port.send_gradients(link, step, micro_batch, on_cpu, self._codecs.of(link))
