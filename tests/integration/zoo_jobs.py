"""Data and losses for models of the zoo, apart from the models: who reads data need not import libraries of models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

VOCABULARY, LENGTH = 13, 6
NUM_ROWS = 24


def texts() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """The next word is the label."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_ROWS):
        ids = torch.randint(1, VOCABULARY, (LENGTH,), generator=generator)
        yield {"input_ids": ids, "attention_mask": torch.ones(LENGTH, dtype=torch.long)}, ids.roll(-1)


def words() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    for inputs, label in texts():
        yield {"x": inputs["input_ids"]}, label


def pictures(size: int = 8) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_ROWS):
        x = torch.randn(3, size, size, generator=generator)
        yield {"x": x}, x.mean((1, 2)).argmax()


def large_pictures() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    return pictures(64)


def odd_rows() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_ROWS):
        yield {"x": torch.randn(5, 7, generator=generator)}, torch.randint(3, (4,), generator=generator)


def next_word(outputs: Any, labels: Tensor) -> Tensor:
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def next_word_and_balance(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    return next_word(outputs[0], labels) + 0.1 * outputs[1]


def first_word(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels[:, 0] % outputs.shape[1])


def class_of(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels)
