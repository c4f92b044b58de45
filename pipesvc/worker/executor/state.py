"""The state of one stage as a stream of safetensors: the bytes of one tensor at a time, never the whole.

The names are those of the unsplit model's state dict, so the stages' files join to one that plain torch loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire import safetensors_stream, tensors
from pipesvc.worker.executor.stage import Stage

# With its envelope below what a local socket carries in one message.
CHUNK_BYTES: Final = 128 * 1024


def check(stage: Stage) -> None:
    """Refuses, before training, state that no safetensors file can hold."""
    where = Where(stage=stage.spec.index)
    for name, value in stage.state_dict().items():
        if not isinstance(value, Tensor):
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"the state {name!r} is a {type(value).__name__}, and only tensors can be saved",
                advice="Register it as a buffer, or leave it out of get_extra_state()",
                where=where,
            )
    try:
        _layout(stage)
    except PipesvcError as error:
        raise error.at(where) from error


def chunks(stage: Stage, step: int) -> Iterator[local_pb2.StateChunk]:
    """The file of this stage after `step`; the last chunk says that it is."""
    layout, state = _layout(stage), stage.state_dict()
    pieces = safetensors_stream.stream(layout, lambda name: tensors.tensor_bytes(state[name]), CHUNK_BYTES)
    offset = 0
    for data in _joined(pieces):
        end = offset + len(data)
        yield local_pb2.StateChunk(
            step=step, stage=stage.spec.index, offset=offset, data=data, is_last=end == layout.total_bytes
        )
        offset = end


def _layout(stage: Stage) -> safetensors_stream.Layout:
    return safetensors_stream.make_layout(
        {name: (tensors.element_type_of(tensor), tuple(tensor.shape)) for name, tensor in stage.state_dict().items()}
    )


def _joined(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Many small tensors in one message: every item but the last has CHUNK_BYTES."""
    pending = bytearray()
    for piece in pieces:
        taken = CHUNK_BYTES - len(pending)
        pending += piece[:taken]
        if len(pending) == CHUNK_BYTES:
            yield bytes(pending)
            pending = bytearray(piece[taken:])
    if pending:
        yield bytes(pending)
