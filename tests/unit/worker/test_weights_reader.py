"""Weights by name: ranges of a file into the tensors of a part, and what does not fit."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import job_pb2, local_pb2
from pipesvc.wire.weights_name import name_of
from pipesvc.worker import weights_reader
from pipesvc.worker.executor import loading
from pipesvc.worker.weights_reader import WeightsReader

NAME = name_of(job_pb2.WeightsSource(sha256="0" * 64, path="first.st"))


class FilePort:
    """Answers from a file; notes how many questions are under way at once."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.asked: deque[local_pb2.ReadWeights] = deque()
        self.most_asked = 0
        self.num_read = 0

    def report(self, message: local_pb2.FromChild) -> None:
        self.asked.append(message.read_weights)
        self.most_asked = max(self.most_asked, len(self.asked))

    def poll(self, timeout_s: float | None) -> list[local_pb2.ToChild]:
        ask = self.asked.popleft()
        data = self.data[ask.offset : ask.offset + ask.num_bytes]
        self.num_read += len(data)
        piece = local_pb2.WeightsPiece(offset=ask.offset, data=data, total_bytes=len(self.data))
        return [local_pb2.ToChild(weights_piece=piece)]


class Part:
    """As much of a stage as loading needs."""

    def __init__(self, roots: dict[str, nn.Module]) -> None:
        self._roots = roots

    def roots(self) -> dict[str, nn.Module]:
        return self._roots

    def shared_names(self) -> dict[str, nn.Parameter]:
        return {}


def saved(tmp_path: Path, state: dict[str, torch.Tensor]) -> FilePort:
    save_file(state, tmp_path / "weights.safetensors")
    return FilePort(tmp_path / "weights.safetensors")


def load(port: Any, *parts: Part) -> None:
    loading.load(WeightsReader(port, NAME), parts)  # type: ignore[arg-type]


def test_a_part_reads_its_own_tensors_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_reader, "PIECE_BYTES", 64)
    source = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(30), nn.Linear(30, 2000))
    port = saved(tmp_path, source.state_dict())
    target = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(30))
    load(port, Part({"0": target[0], "1": target[1]}))
    for name, value in target.state_dict().items():
        assert torch.equal(value, source.state_dict()[name])
    assert port.num_read < 20_000
    assert 1 < port.most_asked <= weights_reader._NUM_AHEAD


def test_types_are_converted_and_what_has_no_values_here_is_left(tmp_path: Path) -> None:
    source = nn.Linear(4, 3)
    port = saved(tmp_path, {name: value.to(torch.bfloat16) for name, value in source.state_dict().items()})
    model = nn.Linear(4, 3)
    model.bias = nn.Parameter(model.bias.to("meta"))
    load(port, Part({"": model}), Part({"": model}))
    assert torch.equal(model.weight, source.weight.to(torch.bfloat16).float())
    assert model.bias.is_meta


def test_a_file_that_is_none_or_ends_early_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("these are not the weights")
    with pytest.raises(PipesvcError, match=r"the file 'first\.st' cannot be read .*: it does not begin with"):
        WeightsReader(FilePort(path), NAME).layout()  # type: ignore[arg-type]
    path.write_bytes(b"123")
    with pytest.raises(PipesvcError, match=r"the file 'first\.st' ends within"):
        WeightsReader(FilePort(path), NAME).layout()  # type: ignore[arg-type]


def test_all_that_differs_is_named(tmp_path: Path) -> None:
    port: Any = saved(tmp_path, {"weight": torch.zeros(2, 4), "scale": torch.zeros(1)})
    said = loading.misfits(nn.Linear(4, 3).state_dict(), WeightsReader(port, NAME).layout())
    assert said == [
        "it has no bias",
        "the model has no scale",
        "weight is [2, 4] there and [3, 4] in the model",
    ]
