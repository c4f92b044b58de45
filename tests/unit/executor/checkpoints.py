"""Checkpoints of clusters: written by the stages of one cut, put together as the coordinator does, read by another."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import cast

from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.safetensors_stream import merge
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.weights_reader import WeightsReader
from tests.unit.executor.network import CheckpointFiles, Cluster


class BytesPort:
    """Answers what is asked of a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._asked: deque[local_pb2.ReadWeights] = deque()

    def report(self, message: local_pb2.FromChild) -> None:
        self._asked.append(message.read_weights)

    def poll(self, timeout_s: float | None) -> list[local_pb2.ToChild]:
        ask = self._asked.popleft()
        data = self._data[ask.offset : ask.offset + ask.num_bytes]
        piece = local_pb2.WeightsPiece(offset=ask.offset, data=data, total_bytes=len(self._data))
        return [local_pb2.ToChild(weights_piece=piece)]


def reader_of(path: Path) -> WeightsReader:
    return WeightsReader(cast(PortLike, BytesPort(path.read_bytes())), "the file")


def saved(cluster: Cluster, step: int, folder: Path) -> CheckpointFiles:
    """Of the step that all stages have just applied."""
    for port in cluster.ports.values():
        port.tell(save_state=local_pb2.SaveState(step=step))
    cluster.turn_until_idle()
    shards: dict[tuple[bool, int], bytes] = {}
    for chunk in cluster.reported("state_chunk"):
        if chunk.step == step:
            key = chunk.is_training, chunk.stage
            assert len(shards.get(key, b"")) == chunk.offset
            shards[key] = shards.get(key, b"") + chunk.data
    assert len(shards) == 2 * cluster.setup.num_stages
    readers = []
    for is_training in (False, True):
        paths = [folder / f"{is_training}-{stage}" for stage in range(cluster.setup.num_stages)]
        for stage, path in enumerate(paths):
            path.write_bytes(shards[is_training, stage])
        merge(paths, folder / f"{is_training}")
        readers.append(reader_of(folder / f"{is_training}"))
    weights, training = readers
    return CheckpointFiles(weights=weights, training=training)
