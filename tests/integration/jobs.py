"""What integration tests submit: models, losses and data, importable by name, as user code reaches a worker.

Every source draws from a generator of its own, so that the plain loop of `plain.py` sees the same rows without knowing
how a feeder seeds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import pipesvc

WIDTH = 8
NUM_CLASSES = 4


def mlp(depth: int = 4) -> nn.Sequential:
    """`depth` linear layers with an activation each, then a classifier."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, NUM_CLASSES))


def tied() -> nn.Sequential:
    """The first and the last but one share their weight, and one layer is there twice."""
    first, again, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return nn.Sequential(first, nn.GELU(), again, nn.Tanh(), again, nn.GELU(), last, nn.Linear(WIDTH, NUM_CLASSES))


def marked() -> nn.Sequential:
    """Four layers as 1|2|1 on three CPU workers."""
    with pipesvc.device_guard("cpu:first"):
        first = nn.Linear(WIDTH, WIDTH)
    with pipesvc.device_guard("cpu:middle"):
        middle = [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    with pipesvc.device_guard("cpu:last"):
        last = nn.Linear(WIDTH, NUM_CLASSES)
    return nn.Sequential(first, *middle, last)


def samples(num_rows: int = 80, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_rows):
        row = torch.randn(WIDTH, generator=generator)
        yield row, (row[:NUM_CLASSES].argmax())


def inputs_alone(num_rows: int = 80, seed: int = 1) -> Iterator[Tensor]:
    for row, _ in samples(num_rows, seed):
        yield row


def wide_samples(num_rows: int = 80) -> Iterator[tuple[Tensor, Tensor]]:
    """One number more in each row than the models take."""
    for row, label in samples(num_rows):
        yield torch.cat([row, row[:1]]), label


def float_labels(num_rows: int = 80) -> Iterator[tuple[Tensor, Tensor]]:
    for row, label in samples(num_rows):
        yield row, label.to(torch.float32)


def slow_samples(num_rows: int = 80, pause_s: float = 0.05) -> Iterator[tuple[Tensor, Tensor]]:
    for sample in samples(num_rows):
        time.sleep(pause_s)
        yield sample


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def mean_square(outputs: Tensor) -> Tensor:
    return outputs.square().mean()


class Sleepy(nn.Module):
    """A layer that takes its time, as a device would, and leaves the cores free."""

    def __init__(self, num_outputs: int, pause_s: float, by_row: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, num_outputs)
        self.pause_s = pause_s
        self.by_row = by_row

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.pause_s * (len(x) if self.by_row else 1))
        out: Tensor = self.linear(x)
        return out


def sleepy(num_layers: int, pause_s: float, by_row: bool = False) -> nn.Sequential:
    sizes = [WIDTH] * (num_layers - 1) + [NUM_CLASSES]
    return nn.Sequential(*[Sleepy(size, pause_s, by_row) for size in sizes])


class Faulty(nn.Module):
    """Passes its input on, until something happens at the chosen call: it raises, prints, dies or never ends."""

    def __init__(self, kind: str, at_call: int) -> None:
        super().__init__()
        self.kind = kind
        self.at_call = at_call
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        if self.num_calls == self.at_call:
            if self.kind == "raise":
                raise ValueError("boom")
            if self.kind == "print":
                print("a line of the user's code")
                print("a line on stderr", file=sys.stderr)
            if self.kind == "segfault":
                sys.stderr.write("about to go\n")
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.kind == "nan":
                return x * float("nan")
        return x


def faulty(kind: str, at_call: int = 1) -> nn.Sequential:
    """The fault is in the second half: stage 1 of 2."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), Faulty(kind, at_call), nn.Linear(WIDTH, NUM_CLASSES))


def mismatched() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH + 1, NUM_CLASSES))


def exits_in_the_source(num_rows: int = 80) -> Iterator[tuple[Tensor, Tensor]]:
    yield from samples(num_rows // 20)
    os._exit(3)


def sparse_table() -> nn.Sequential:
    table = nn.Embedding(16, WIDTH, sparse=True)
    return nn.Sequential(table, nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, NUM_CLASSES))


def numbers(num_rows: int = 80) -> Iterator[tuple[int, int]]:
    for i in range(num_rows):
        yield i * i % 16, i % NUM_CLASSES


def named() -> nn.Sequential:
    layers = {
        "body": nn.Linear(WIDTH, WIDTH),
        "bend": nn.GELU(),
        "head": nn.Linear(WIDTH, NUM_CLASSES),
        "loss_side": nn.Identity(),
    }
    return nn.Sequential(OrderedDict(layers))


def misplaced() -> nn.Sequential:
    with pipesvc.device_guard("cpu:0"):
        first = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, nn.Linear(WIDTH, NUM_CLASSES))


def on_gpu() -> nn.Sequential:
    with pipesvc.device_guard("cpu"):
        first = nn.Linear(WIDTH, WIDTH)
    with pipesvc.device_guard("gpu:7"):
        last = nn.Linear(WIDTH, NUM_CLASSES)
    return nn.Sequential(first, last)


def breaks_while_building() -> nn.Sequential:
    raise RuntimeError("no model today")


def needs_a_package() -> nn.Sequential:
    import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401

    return mlp(1)


def source_that_raises(num_rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from samples(num_rows)
    raise KeyError("row 17 is torn")


def ragged_samples() -> Iterator[tuple[Tensor, Tensor]]:
    for i in range(20):
        yield torch.zeros(WIDTH + i % 2), torch.tensor(0)


def source_that_blocks(num_rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from samples(num_rows)
    threading.Event().wait()


def late_source(pause_s: float, num_rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    time.sleep(pause_s)
    yield from samples(num_rows)


def sample_lists(num_rows: int = 80) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Each list is the samples of one batch."""
    rows = list(samples(num_rows))
    for start in range(0, num_rows, 8):
        yield rows[start : start + 8]


def whole_batches(num_rows: int = 80, batch_size: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    rows = list(samples(num_rows))
    for start in range(0, num_rows, batch_size):
        part = rows[start : start + batch_size]
        yield torch.stack([row for row, _ in part]), torch.stack([torch.as_tensor(label) for _, label in part])


class TwoTowers(nn.Module):
    """Reads a named dict of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.left(inputs["left"]), self.right(inputs["right"])


class Join(nn.Module):
    """Reads the pair that the layer before gave: two tensors cross the boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        left, right = pair
        out: Tensor = self.out(left * right)
        return out


def towers() -> nn.Sequential:
    return nn.Sequential(TwoTowers(), Join())


def named_samples(num_rows: int = 80) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    for row, label in samples(num_rows):
        yield {"left": row, "right": row.flip(0)}, label


class SelfScoring(nn.Module):
    """A last layer that computes the loss itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def self_scoring() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 2), SelfScoring())


def list_of_layers() -> list[nn.Module]:
    return list(mlp(2))


def with_noise() -> nn.Sequential:
    """Layers that draw and layers that keep running statistics."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, NUM_CLASSES))


def masked_samples(num_masked: int) -> Iterator[tuple[Tensor, Tensor]]:
    """18 rows a batch, of which the first so many are masked: label -1."""
    for i, (row, label) in enumerate(samples(90)):
        yield row, torch.tensor(-1) if i % 18 < num_masked else label


def masked_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, ignore_index=-1)


def is_unmasked(labels: Tensor) -> Tensor:
    return labels != -1
