"""The sizes that all contenders of a benchmark share, apart from torch, so that deciding code can be tested alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Seeds of the initial weights and of the one batch that every step trains on.
MODEL_SEED: Final = 0
DATA_SEED: Final = 1
# The optimizer is plain SGD.
LEARNING_RATE: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """A GPT of one embedding, `num_blocks` blocks and one head. They are the arguments of `gpt.build_model`."""

    vocabulary: int
    width: int
    num_heads: int
    num_blocks: int
    context: int

    @property
    def num_layers(self) -> int:
        return self.num_blocks + 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """One step: `num_micro_batches` of `micro_batch_rows` rows of `model.context` tokens."""

    model: ModelSizes
    micro_batch_rows: int
    num_micro_batches: int

    @property
    def num_rows(self) -> int:
        return self.micro_batch_rows * self.num_micro_batches

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.model.context

    def boundaries(self, num_stages: int) -> tuple[int, ...]:
        """The first layer of each stage after the first; every contender is cut here."""
        return tuple(self.model.num_layers * stage // num_stages for stage in range(1, num_stages))


FULL: Final = Sizes(
    model=ModelSizes(vocabulary=8192, width=384, num_heads=6, num_blocks=8, context=128),
    micro_batch_rows=4,
    num_micro_batches=8,
)
# The same without a block: little arithmetic beside what embedding and head send each other.
WIDE: Final = Sizes(
    model=ModelSizes(vocabulary=64, width=256, num_heads=1, num_blocks=0, context=128),
    micro_batch_rows=32,
    num_micro_batches=8,
)
# To see that a benchmark works; its figures say nothing.
TINY: Final = Sizes(
    model=ModelSizes(vocabulary=64, width=32, num_heads=2, num_blocks=2, context=16),
    micro_batch_rows=1,
    num_micro_batches=4,
)
