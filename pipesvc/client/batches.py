"""Batches of a source that is iterated in the client's process, cut as a feeder would cut them.

The feeder of a streamed run gets whole batches, so grouping samples happens here, by the feeder's own rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pipesvc.client.job import StreamSource


def batches(source: StreamSource) -> Iterator[Any]:
    """Each batch as the tree that travels: (inputs, labels), or inputs alone without labels."""
    from pipesvc.wire import collate

    def checked(item: Any) -> Any:
        return collate.split_pair(item) if source.labels else item

    if source.yields == "batch":
        yield from (collate.owned(checked(item)) for item in source.source)
        return
    for samples in _lists(source):
        if source.drop_last and source.batch_size is not None and len(samples) < source.batch_size:
            continue
        yield collate.stacked([checked(sample) for sample in samples])


def _lists(source: StreamSource) -> Iterator[list[Any]]:
    items = iter(source.source)
    if source.yields == "sample_list":
        yield from map(list, items)
        return
    while samples := list(islice(items, source.batch_size)):
        yield samples
