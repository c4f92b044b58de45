"""Batches of a source that is iterated in the client's process, cut as a feeder would cut them.

The feeder of a streamed run gets whole batches; so grouping and collating samples happens here, with torch's own
collate rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from pipesvc.client.job import StreamSource
from pipesvc.errors import ErrorCode, PipesvcError


def batches(source: StreamSource) -> Iterator[Any]:
    """Each batch as the tree that travels: (inputs, labels), or inputs alone without labels."""
    if source.yields == "batch":
        yield from (_owned(_checked(item, source)) for item in source.source)
        return
    for samples in _lists(source):
        if source.drop_last and source.batch_size is not None and len(samples) < source.batch_size:
            continue
        yield _stacked([_checked(sample, source) for sample in samples])


def _lists(source: StreamSource) -> Iterator[list[Any]]:
    items = iter(source.source)
    if source.yields == "sample_list":
        yield from map(list, items)
        return
    while samples := list(islice(items, source.batch_size)):
        yield samples


def _checked(item: Any, source: StreamSource) -> Any:
    if not source.labels:
        return item
    if not isinstance(item, tuple | list) or len(item) != 2:
        size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
        raise PipesvcError(
            ErrorCode.DATA_SOURCE_FAILED,
            f"the source yielded a {type(item).__name__}{size} where (input, label) was expected",
            advice="Yield pairs, or set labels=False",
        )
    return tuple(item)


def _owned(tree: Any) -> Any:
    """Copies, with arrays as tensors: the source may fill the same buffers again before they are sent."""
    import numpy as np
    import torch

    if isinstance(tree, torch.Tensor | np.ndarray):
        return torch.as_tensor(tree).detach().clone()
    if type(tree) in (list, tuple):
        return type(tree)(_owned(item) for item in tree)
    if isinstance(tree, dict):
        return {key: _owned(item) for key, item in tree.items()}
    return tree


def _stacked(samples: Sequence[Any]) -> Any:
    """One batch of these samples, by the feeder's rules: Python numbers become tensors of torch's default types."""
    import numpy as np
    import torch

    first = samples[0]
    if isinstance(first, torch.Tensor | np.ndarray):
        tensors = [torch.as_tensor(each).detach() for each in samples]
        kinds = {f"{each.dtype} {tuple(each.shape)}" for each in tensors}
        if len(kinds) > 1:
            raise _unlike(kinds)
        return torch.stack(tensors)
    if isinstance(first, bool | int | float | complex | np.generic):
        return torch.tensor([each.item() if isinstance(each, np.generic) else each for each in samples])
    if any(type(each) is not type(first) for each in samples):
        raise _unlike({type(each).__name__ for each in samples})
    if isinstance(first, dict):
        if any(each.keys() != first.keys() for each in samples):
            raise _unlike({f"a dict with {sorted(each)}" for each in samples})
        return {key: _stacked([each[key] for each in samples]) for key in first}
    if isinstance(first, tuple | list):
        if any(len(each) != len(first) for each in samples):
            raise _unlike({f"a {type(first).__name__} of {len(each)}" for each in samples})
        parts = [_stacked(part) for part in zip(*samples, strict=True)]
        return tuple(parts) if isinstance(first, tuple) else parts
    raise PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"a sample has a {type(first).__name__}, which cannot become part of a batch",
        advice="Give tensors, arrays and numbers, in tuples, lists or dicts",
    )


def _unlike(kinds: Iterable[str]) -> PipesvcError:
    return PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"the samples do not make a batch: {' and '.join(sorted(kinds)[:2])}",
        advice='Pad the samples to one shape, or yield whole batches (yields="batch")',
    )
