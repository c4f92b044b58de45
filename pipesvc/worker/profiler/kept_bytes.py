"""Bytes that training holds, counted on the tensors themselves.

Formulas for activations are wrong as soon as a layer checkpoints, fuses or keeps a mask; the process's memory counts
what the allocator keeps. So autograd is asked what it saves, and each storage counts once, however many views of it
are saved. Sizes of tensors in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pipesvc.model.ghosts import tensors_in


@contextmanager
def watching_saves(layer: nn.Module) -> Iterator[dict[int, int]]:
    """Storages that a forward inside saves for its backward, with their bytes; parameters and buffers are left out,
    for they are there anyway."""
    own = {storage_of(each) for each in (*layer.parameters(), *layer.buffers())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = storage_of(tensor)
        if storage is not None and storage not in own:
            saved[storage] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # an output that saved itself would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def storage_of(tensor: Tensor) -> int | None:
    """What is equal for two tensors over the same memory; None for a sparse one, which has several."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else None


def num_bytes(tensors: Iterable[Tensor | None]) -> int:
    """As they travel and as they are made anew: views count with their own elements only."""
    return sum(each.numel() * each.element_size() for each in tensors if each is not None)


def by_type(tensors: Iterable[Tensor | None]) -> dict[str, int]:
    """The same for each type, by torch's name for it."""
    found: Counter[str] = Counter()
    for each in tensors:
        if each is not None:
            found[str(each.dtype).removeprefix("torch.")] += num_bytes((each,))
    return dict(found)


def gradient_bytes(parameters: Iterable[nn.Parameter], num_micro_batches: int) -> int:
    """Of a whole step, from the gradients of one micro-batch: sparse ones are appended to each other."""
    total = 0
    for grad in (each.grad for each in parameters if each.grad is not None):
        if grad.layout is torch.sparse_coo:
            total += num_micro_batches * num_bytes((grad._indices(), grad._values()))
        else:
            total += num_bytes((grad,))
    return total


def optimizer_bytes(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Of the state that they have made in their first update."""
    return sum(num_bytes(tensors_in(dict(each.state))) for each in optimizers)
