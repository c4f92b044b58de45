"""What the model gives for a micro-batch, as the parts in which it leaves a prediction.

The parts are made one after the other while the last are being sent, so no copy of the whole exists. Mappings, named
tuples and dataclasses leave as plain dicts and tuples: their classes may not be where the outputs are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire import tensors, tree

# With its envelope below what a local socket carries in one message.
PART_BYTES: Final = 128 * 1024


def parts(issue: local_pb2.IssueStep, micro_batch: int, value: Any) -> Iterator[local_pb2.OutputPart]:
    """Of one micro-batch: each tensor at least once."""
    try:
        structure, leaves = tree.flatten(_plain(value), lambda leaf: isinstance(leaf, Tensor))
    except PipesvcError as error:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"what the model gives cannot be sent to the client: {error.details.message}",
            advice=error.details.advice,
        ) from error
    for index in range(max(1, len(leaves))):
        part = local_pb2.OutputPart(
            step=issue.step,
            micro_batch=micro_batch,
            num_micro_batches=len(issue.rows),
            rows=issue.rows[micro_batch],
            value=index,
            num_values=len(leaves),
            structure="" if index else structure,
        )
        if not leaves:
            yield part
            return
        part.dtype = tensors.element_type_of(leaves[index])  # type: ignore[assignment]
        part.shape.extend(leaves[index].shape)
        yield from _pieces(part, tensors.tensor_bytes(leaves[index]))


def _pieces(first: local_pb2.OutputPart, data: memoryview) -> Iterator[local_pb2.OutputPart]:
    for offset in range(0, max(1, len(data)), PART_BYTES):
        part = local_pb2.OutputPart()
        part.CopyFrom(first)
        part.total_bytes, part.offset, part.data = len(data), offset, bytes(data[offset : offset + PART_BYTES])
        yield part


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value
