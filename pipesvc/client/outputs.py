"""The outputs of a prediction, from the parts in which they come to one value for each batch.

A batch was cut into micro-batches by rows, so its outputs are joined by rows, in the structure in which the model gave
them. What has no rows could be joined in many ways, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2, run_pb2
from pipesvc.wire import tree

if TYPE_CHECKING:
    from torch import Tensor

_ADVICE = "Give outputs whose first dimension is the row, or predict with micro_batches=1, which joins nothing"


@dataclass(kw_only=True)
class _MicroBatch:
    structure: str
    rows: int
    num_values: int
    leaves: list[Tensor] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return len(self.leaves) == self.num_values


def batches(responses: Iterable[run_pb2.ReadOutputsResponse]) -> Iterator[tuple[int, Any]]:
    """The number of each batch and what the model gave for it."""
    found: list[_MicroBatch] = []
    data = bytearray()
    for response in responses:
        part = response.part
        if not part.offset:
            data = bytearray()
        if not part.offset and not part.value:
            if not part.micro_batch:  # also of a batch that broke off
                found = []
            if found and not found[-1].is_whole:
                raise _incomplete(part)
            found.append(_MicroBatch(structure=part.structure, rows=part.rows, num_values=part.num_values))
        if (part.micro_batch, part.value, part.offset) != (len(found) - 1, found and len(found[-1].leaves), len(data)):
            raise _incomplete(part)
        data += part.data
        if part.num_values and len(data) == part.total_bytes:
            found[-1].leaves.append(_tensor(data, part))
        if response.is_last:
            if len(found) != part.num_micro_batches or not found[-1].is_whole:
                raise _incomplete(part)
            yield part.step, _joined(found, part.step)


def _tensor(data: bytearray, part: local_pb2.OutputPart) -> Tensor:
    from pipesvc.wire import tensors

    return tensors.from_buffer(memoryview(data), part.dtype, tuple(part.shape))


def _joined(found: list[_MicroBatch], step: int) -> Any:
    first = found[0]
    if len(found) == 1:
        return tree.unflatten(first.structure, first.leaves)
    if any(each.structure != first.structure for each in found):
        raise _refusal(
            "its micro-batches have outputs of different structures, or with different numbers in them", step
        )
    parts = zip(*(each.leaves for each in found), strict=True)
    leaves = [_cat(list(part), [each.rows for each in found], index, step) for index, part in enumerate(parts)]
    return tree.unflatten(first.structure, leaves)


def _cat(parts: list[Tensor], rows: list[int], index: int, step: int) -> Tensor:
    import torch

    for part, count in zip(parts, rows, strict=True):
        if part.dim() == 0 or part.shape[0] != count:
            what = f"tensor {index} of its outputs has the shape {list(part.shape)} for a micro-batch of {count} rows"
            raise _refusal(what, step)
    if len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise _refusal(f"tensor {index} of its outputs is not of one size in all micro-batches: {shapes}", step)
    return torch.cat(parts)


def _incomplete(part: local_pb2.OutputPart) -> PipesvcError:
    place = f"tensor {part.value} of micro-batch {part.micro_batch}, byte {part.offset}"
    message = f"the outputs of batch {part.step} came with a gap or twice: at {place}"
    advice = "Predict again; `pipesvc logs` says whether a worker lost its connection meanwhile"
    return PipesvcError(ErrorCode.INTERNAL, message, advice=advice, where=Where(step=part.step))


def _refusal(what: str, step: int) -> PipesvcError:
    message = f"the outputs of batch {step} cannot be joined: {what}"
    return PipesvcError(ErrorCode.INVALID_JOB, message, advice=_ADVICE, where=Where(step=step))
