"""What contenders train, by name: the same layers, weights, batch, micro-batches and optimizer for all of them.

A name is all that a process has to be told. Models: `gpt`, that of the other benchmarks; `thin`, whose boundary is
large beside its arithmetic, 8 or 16 MiB; `asleep`, whose arithmetic is a device's and leaves the processor free;
`empty`, in which all is overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch import Tensor, nn

from benchmarks import gpt, models
from benchmarks.sizes import DATA_SEED, FULL, TINY, WIDE, Sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One step: `num_micro_batches` of `micro_batch_rows` rows of `context` tokens."""

    title: str
    build: Callable[..., nn.Sequential]
    arguments: Mapping[str, Any]
    loss: Callable[[Tensor, Tensor], Tensor]
    num_layers: int
    context: int
    vocabulary: int
    micro_batch_rows: int
    num_micro_batches: int
    num_warm_up_steps: int
    num_timed_steps: int

    @property
    def num_steps(self) -> int:
        """Of a turn."""
        return self.num_warm_up_steps + self.num_timed_steps

    @property
    def batch(self) -> dict[str, int]:
        """Arguments of gpt.random_batch."""
        num_rows = self.micro_batch_rows * self.num_micro_batches
        return {"num_rows": num_rows, "context": self.context, "vocabulary": self.vocabulary, "seed": DATA_SEED}

    @property
    def num_tokens(self) -> int:
        return self.micro_batch_rows * self.num_micro_batches * self.context

    def equal_cut(self, num_stages: int) -> tuple[int, ...]:
        """The first layer of each stage after the first: equal numbers of layers, as torch's own examples cut."""
        return tuple(self.num_layers * stage // num_stages for stage in range(1, num_stages))


def gpt_of(title: str, sizes: Sizes) -> Workload:
    return Workload(
        title=title,
        build=gpt.build_model,
        arguments=asdict(sizes.model),
        loss=gpt.token_loss,
        num_layers=sizes.model.num_layers,
        context=sizes.model.context,
        vocabulary=sizes.model.vocabulary,
        micro_batch_rows=sizes.micro_batch_rows,
        num_micro_batches=sizes.num_micro_batches,
        num_warm_up_steps=1,
        num_timed_steps=2,
    )


def _thin(title: str, num_rows: int, num_timed_steps: int) -> Workload:
    num_layers, context, vocabulary, width = 4, 128, 64, 256
    return Workload(
        title=title,
        build=models.build_thin,
        arguments={"vocabulary": vocabulary, "width": width, "num_layers": num_layers, "context": context},
        loss=gpt.token_loss,
        num_layers=num_layers + 2,
        context=context,
        vocabulary=vocabulary,
        micro_batch_rows=num_rows,
        num_micro_batches=8,
        num_warm_up_steps=1,
        num_timed_steps=num_timed_steps,
    )


def _asleep(title: str, num_rows: int) -> Workload:
    context, width = 128, 256
    return Workload(
        title=title,
        build=models.build_asleep,
        arguments={"width": width, "context": context, "forward_s": 0.01},
        loss=models.mean_loss,
        num_layers=2,
        context=context,
        vocabulary=64,
        micro_batch_rows=num_rows,
        num_micro_batches=8,
        num_warm_up_steps=2,
        num_timed_steps=6,
    )


def _empty() -> Workload:
    return Workload(
        title="empty stages",
        build=models.build_empty,
        arguments={"num_layers": 2},
        loss=models.mean_loss,
        num_layers=2,
        context=1,
        vocabulary=2,
        micro_batch_rows=1,
        num_micro_batches=8,
        num_warm_up_steps=50,
        num_timed_steps=100,
    )


WORKLOADS: Final[Mapping[str, Workload]] = {
    "gpt": gpt_of("GPT", FULL),
    "thin-8": _thin("communication-heavy, 8 MiB boundary", 64, 3),
    "thin-16": _thin("communication-heavy, 16 MiB boundary", 128, 2),
    "asleep": _asleep("device-like, 10 + 20 ms asleep, 8 MiB boundary", 64),
    "empty": _empty(),
    # 35 ms at 1 Gbit, each way, for each micro-batch.
    "wide": gpt_of("embedding and head, 4 MiB boundary", WIDE),
    # To see that a benchmark works; its figures say nothing.
    "tiny": gpt_of("tiny GPT", TINY),
}
