"""The state of one stage as two files of safetensors, its weights and its training state, each a stream: the bytes of
one tensor at a time, never the whole.

The names are those of the unsplit model's state dict, so the stages' files of weights join to one that plain torch
loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire import safetensors_stream, tensors, training_file
from pipesvc.worker.executor import training_state
from pipesvc.worker.executor.scaling import LossScale
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
        _layout(stage, types_pb2.Position())
    except PipesvcError as error:
        raise error.at(where) from error


def chunks(stage: Stage, position: types_pb2.Position, scale: LossScale | None) -> Iterator[local_pb2.StateChunk]:
    """The files of this stage after `position`; the last chunk of the second says that it is. `scale` is that of the
    next loss, from the stage that decides it."""
    step, index = position.step, stage.spec.index
    for offset, data, _ in _file(_layout(stage, position), stage.state_dict()):
        yield local_pb2.StateChunk(step=step, stage=index, offset=offset, data=data)
    saved = training_state.saved(stage, position, scale)
    for offset, data, is_last in _file(saved.layout, saved.tensors):
        yield local_pb2.StateChunk(step=step, stage=index, offset=offset, data=data, is_last=is_last, is_training=True)


def _file(layout: safetensors_stream.Layout, state: Mapping[str, Tensor]) -> Iterator[tuple[int, bytes, bool]]:
    """Pieces with their offset, and whether it is the last."""
    pieces = safetensors_stream.stream(layout, lambda name: tensors.tensor_bytes(state[name]), CHUNK_BYTES)
    offset = 0
    for data in _joined(pieces):
        yield offset, data, offset + len(data) == layout.total_bytes
        offset += len(data)


def _layout(stage: Stage, position: types_pb2.Position) -> safetensors_stream.Layout:
    described = {
        name: (tensors.element_type_of(tensor), tuple(tensor.shape)) for name, tensor in stage.state_dict().items()
    }
    return safetensors_stream.make_layout(described, {training_file.STANDS: training_file.stands_text(position)})


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
