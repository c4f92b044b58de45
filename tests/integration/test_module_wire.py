"""What crosses between the stages of a module, through real processes, over gRPC and between children of one host."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import pipesvc
from tests.integration import module_jobs
from tests.integration.comparisons import assert_equal
from tests.integration.module_jobs import LENGTH, NUM_CLASSES, VOCABULARY, WIDTH
from tests.integration.test_modules import make_job, truth

NUM_ROWS = 40
WAYS = pytest.mark.parametrize("same_host", [True, False], ids=["same host", "gRPC"])


class Mixed(nn.Module):
    """Float32, bfloat16 and whole numbers go from one part to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.halves = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, ids: Tensor, weight: Tensor) -> Tensor:
        h = self.words(ids)
        half, counts = self.halves(h.bfloat16()), ids + 1
        mixed = torch.tanh(self.mix(h)) * weight[:, None, None]
        assert (mixed.dtype, half.dtype, counts.dtype) == (torch.float32, torch.bfloat16, torch.int64)
        out: Tensor = self.head((mixed + half.float()).mean(1) / counts.float().mean(1, keepdim=True))
        return out


def words_of_lengths() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Each batch of eight rows has a length of its own, shorter ones after longer ones."""
    generator = torch.Generator().manual_seed(1)
    for length in (128, 129, 5, 9, 3):
        for _ in range(8):
            ids = torch.randint(VOCABULARY, (length,), generator=generator)
            yield {"ids": ids, "weight": torch.rand((), generator=generator)}, ids[0] % NUM_CLASSES


@WAYS
def test_n14_n15_dtypes_and_lengths_that_differ_equal_the_plain_loop(cluster: pipesvc.Client, same_host: bool) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, boundaries=("mix",), same_host=same_host)
    data = pipesvc.DataSource(words_of_lengths, batch_size=8)
    run = cluster.submit(make_job(Mixed, data=data, strategy=strategy, epochs=4))
    # Four epochs, so that every length comes back after all others.
    assert_equal(run, truth(Mixed, lambda: itertools.chain.from_iterable(words_of_lengths() for _ in range(4))))
    assert len(run.losses()) == 20
    ways = {link["link"]: link["way"] for link in run.links()}
    assert ways["0>1/activation"] == ("same host" if same_host else "gRPC")


@WAYS
def test_a10_skips_go_straight_to_their_consumer_and_nothing_else_crosses(
    cluster: pipesvc.Client, same_host: bool
) -> None:
    """The embedding is used again before the head: it goes to the last stage, and not by way of the one between."""
    strategy = pipesvc.Strategy(micro_batches=4, boundaries=("blocks.1", "blocks.2"), same_host=same_host)
    run = cluster.submit(make_job(module_jobs.Skipping, strategy=strategy, clip_norm=None))
    run.wait()
    boundary = NUM_ROWS * LENGTH * WIDTH * 4
    counts = {link["link"]: link for link in run.links()}
    between = {name: link for name, link in counts.items() if not name.startswith("feeder")}
    assert {name: link["tensor_bytes"] for name, link in between.items()} == dict.fromkeys(
        ("0>1/activation", "1>2/activation", "0>2/activation", "2>1/gradient", "1>0/gradient", "2>0/gradient"), boundary
    )
    for link in counts.values():
        assert link["wire_bytes"] - link["tensor_bytes"] < 250 * link["num_frames"]
