"""Weights from a file into the part of the model that this worker has, by name.

The file is with the coordinator, who merged it or got it from the client, so it need not be on any worker's disk, and
hosts need share nothing; each worker reads only the ranges of its own tensors, a few pieces ahead, into the memory of
the tensor itself. What the file lacks, and what no part of the model has, was refused by the inspector.

A tensor of several names (tied weights) needs one of them in the file, for libraries write it once. Where there are
several, the last counts, as `load_state_dict` has it, on each stage that holds a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.wire import tensors
from pipesvc.wire.safetensors_stream import Entry, Layout
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.weights_reader import WeightsReader

_MOST_NAMED: Final = 5


def load(reader: WeightsReader, stages: Iterable[Stage]) -> None:
    """Every tensor of the state of these stages, converted to its own type as `load_state_dict` does."""
    layout = reader.layout()
    entries = {entry.name: entry for entry in layout.entries}
    done: set[int] = set()
    for stage in stages:
        for tensor, names in _held(stage):
            if id(tensor) not in done:
                done.add(id(tensor))
                _fill(tensor, entries[[name for name in names if name in entries][-1]], layout, reader)


def misfits(state: Mapping[str, Tensor], layout: Layout) -> list[str]:
    """What differs between the state of a whole model and a file, in words; `it` is the file."""
    entries = {entry.name: entry for entry in layout.entries}
    found_elsewhere = {id(value) for name, value in state.items() if name in entries}
    missing = [name for name, value in state.items() if name not in entries and id(value) not in found_elsewhere]
    unexpected = [name for name in entries if name not in state]
    found = [f"it has no {_few(missing)}"] if missing else []
    found += [f"the model has no {_few(unexpected)}"] if unexpected else []
    shapes = {name: tuple(value.shape) for name, value in state.items() if name in entries}
    others = [
        f"{name} is {list(entries[name].shape)} there and {list(shape)} in the model"
        for name, shape in shapes.items()
        if entries[name].shape != shape
    ]
    return found + others[:_MOST_NAMED] + ([f"so are {len(others) - _MOST_NAMED} more"] if others[_MOST_NAMED:] else [])


def state_of(roots: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """By the names of the whole model; of what has no values here, the shapes."""
    state: dict[str, Any] = {}
    for name, root in roots.items():
        root.state_dict(destination=state, prefix=f"{name}." if name else "", keep_vars=True)
    return state


def _held(stage: Stage) -> list[tuple[Tensor, list[str]]]:
    """What has values here, copies of what other stages own among it, with its names in the order of the model."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, value in {**stage.shared_names(), **state_of(stage.roots())}.items():
        if not value.is_meta:
            found.setdefault(id(value), (value, []))[1].append(name)
    return list(found.values())


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _fill(tensor: Tensor, entry: Entry, layout: Layout, reader: WeightsReader) -> None:
    if entry.shape != tuple(tensor.shape):
        raise PipesvcError(ErrorCode.INTERNAL, f"{entry.name} has another shape than when the job was inspected")
    dtype = tensors.torch_dtype(entry.element_type)
    begin, end = len(layout.header) + entry.begin, len(layout.header) + entry.end
    with torch.no_grad():
        is_own_memory = tensor.is_cpu and tensor.dtype == dtype and tensor.is_contiguous()
        target = tensor if is_own_memory else torch.empty(entry.shape, dtype=dtype)
        view = tensors.writable_bytes(target)
        reader.read_into(begin, view[: end - begin])
        if target is not tensor:
            tensor.copy_(target)
