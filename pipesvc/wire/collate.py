"""Samples to batches, and batches to micro-batches: the same rules for a feeder's source and a client's stream.

Torch's own collation turns tuples into lists and promotes types by sample, so the batch would depend on who made it.
All works on trees (tensors in tuples, lists and dicts), by rows: dimension 0. Leaves without rows (numbers, None,
text, 0-dim tensors) belong to the whole batch and go to each of its micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError


def stacked(samples: Sequence[Any]) -> Any:
    """One batch of these samples. Python numbers become tensors of torch's default types."""
    first = samples[0]
    if isinstance(first, Tensor | np.ndarray):
        return _stacked_tensors([torch.as_tensor(each) for each in samples])
    if isinstance(first, bool | int | float | complex | np.generic):
        return torch.tensor([each.item() if isinstance(each, np.generic) else each for each in samples])
    if any(type(each) is not type(first) for each in samples):
        raise _unlike([type(each).__name__ for each in samples])
    _check_container(first)
    if isinstance(first, dict):
        if any(each.keys() != first.keys() for each in samples):
            raise _unlike([f"a dict with the keys {sorted(each)}" for each in samples])
        return {key: stacked([each[key] for each in samples]) for key in first}
    if isinstance(first, tuple | list):
        if any(len(each) != len(first) for each in samples):
            raise _unlike([f"a {type(first).__name__} of {len(each)}" for each in samples])
        parts = [stacked(part) for part in zip(*samples, strict=True)]
        return tuple(parts) if isinstance(first, tuple) else parts
    raise PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"the data source gave a sample with a {type(first).__name__}, which cannot become part of a batch",
        advice="Give tensors, arrays and numbers, in tuples, lists or dicts",
    )


def owned(value: Any) -> Any:
    """The same tree with arrays as tensors, all copied: a source may fill its buffers again while batches wait."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor | np.ndarray):
        return torch.as_tensor(value).detach().clone()
    return _mapped(value, owned)


def split_pair(item: Any) -> tuple[Any, Any]:
    """Inputs and labels of a sample or batch."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    what = f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, tuple | list) else "")
    raise PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"the data source gave {what} where a pair of inputs and labels is due",
        advice="Yield (inputs, labels), or say labels=False if each item is the input alone",
    )


def num_rows(*values: Any) -> int:
    """Rows of a batch; every tensor of it must have as many."""
    sizes = sorted({leaf.shape[0] for value in values for leaf in _leaves(value) if leaf.dim() > 0})
    if len(sizes) == 1 and sizes[0] > 0:
        return sizes[0]
    found = f"tensors of {' and '.join(map(str, sizes))} rows" if sizes else "no tensor with rows"
    raise PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"the data source gave a batch with {found}",
        advice="Dimension 0 of every tensor of a batch is the row, and a batch has at least one",
    )


def cut(value: Any, rows: Sequence[int]) -> list[Any]:
    """The batch as micro-batches of these rows each: views, not copies."""
    parts = []
    start = 0
    for count in rows:
        parts.append(_rows_of(value, start, start + count))
        start += count
    return parts


def _rows_of(value: Any, start: int, end: int) -> Any:
    if isinstance(value, Tensor):
        return value[start:end] if value.dim() > 0 else value
    return _mapped(value, lambda part: _rows_of(part, start, end))


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    _check_container(value)
    if isinstance(value, dict):
        return {key: function(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple([function(each) for each in value])
    if isinstance(value, list):
        return [function(each) for each in value]
    return value


def _check_container(value: Any) -> None:
    """A batch crosses to the model as plain containers, so one of a type of its own would lose its names on the way."""
    for plain in (dict, tuple, list):
        if isinstance(value, plain) and type(value) is not plain:
            kind = "namedtuple " if plain is tuple and hasattr(value, "_fields") else ""
            way_out = " or value._asdict()" if kind else ""
            raise PipesvcError(
                ErrorCode.DATA_SOURCE_FAILED,
                f"the data source gave a {kind}{type(value).__name__}, which would reach the model "
                f"as a plain {plain.__name__}",
                advice=f"Give plain tuples, lists and dicts: {plain.__name__}(value){way_out}",
            )


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each)


def _stacked_tensors(tensors: Sequence[Tensor]) -> Tensor:
    kinds = [f"{each.dtype} {tuple(each.shape)}".removeprefix("torch.") for each in tensors]
    if len(set(kinds)) > 1:
        raise _unlike(kinds)
    return torch.stack([each.detach() for each in tensors])


def _unlike(kinds: Sequence[str]) -> PipesvcError:
    other = next(kind for kind in kinds if kind != kinds[0])
    return PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"the data source gave samples that do not make a batch: {kinds[0]} and {other}",
        advice="Pad the samples to one shape, or let the source give whole batches (yields='batch')",
    )
