"""Data sources as users write them: named by the jobs of these tests."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

# Set by a test to let `blocks` go on.
RELEASED = threading.Event()


# The rows that `samples` has given.
READ: list[int] = []


def samples(count: int = 10) -> Iterator[tuple[Tensor, int]]:
    for index in range(count):
        READ.append(index)
        yield torch.tensor([float(index), 1.0]), index % 3


def sample_lists(sizes: list[int]) -> Iterator[list[tuple[Tensor, int]]]:
    for size in sizes:
        yield list(samples(size))


def whole_batches(sizes: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    for size in sizes:
        yield torch.ones(size, 2), torch.arange(size)


def inputs_only(count: int = 4) -> list[dict[str, Any]]:
    return [{"ids": torch.tensor([index]), "scale": 0.5} for index in range(count)]


class Squares(Dataset[tuple[Tensor, Tensor]]):
    """Map style, without __iter__ and without IndexError."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([index]), torch.tensor(index * index)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0).reshape(5, 2), torch.arange(5)), batch_size=2)


def drawn() -> Iterator[tuple[Tensor, float]]:
    for _ in range(2):
        yield torch.rand(1), random.random() + float(np.random.rand())


def drawn_rows(count: int = 8) -> Iterator[tuple[Tensor, float]]:
    for _ in range(count):
        yield torch.rand(1), random.random() + float(np.random.rand())


def fails_at(index: int) -> Iterator[tuple[Tensor, int]]:
    yield from samples(index)
    raise ValueError("boom in the source")


def blocks() -> Iterator[tuple[Tensor, int]]:
    yield from samples(2)
    RELEASED.wait()


def nothing() -> list[Any]:
    return []


def number() -> int:
    return 3


def positive(labels: Tensor) -> Tensor:
    return (labels > 0).double()


def one_weight(labels: Tensor) -> Tensor:
    return labels.sum()


def failing_weight(labels: Tensor) -> Tensor:
    raise KeyError("weight")
