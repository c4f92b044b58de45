"""Rows of the table of cases that a module with a forward of its own must stand: bits, or a plain word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipesvc.core.flow import gradient_transfers, transfers
from pipesvc.core.schedules import SCHEDULE_NAMES
from tests.unit.executor.batches import Batch
from tests.unit.executor.module_network import ModuleSetup, train_both, train_plain
from tests.unit.executor.owners import owners_of
from tests.unit.model.replay_language import VOCABULARY, Block, D
from tests.zoo.case import ids, square_loss
from tests.zoo.own_sequences import LossInside, words_and_labels


def make_setup(build: Callable[[], nn.Module], batches: list[Batch], parts: int = 3, **options: Any) -> ModuleSetup:
    defaults: dict[str, Any] = {
        "loss": square_loss,
        "make_optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    }
    return ModuleSetup(build=build, sample=batches[0][0][0], parts=parts, **defaults | options)


def rows(num_steps: int, num_micro_batches: int, make: Callable[[int], Any]) -> list[Batch]:
    torch.manual_seed(3)
    return [
        ([make(index) for index in range(num_micro_batches)], None, [2.0] * num_micro_batches) for _ in range(num_steps)
    ]


class Side(nn.Module):
    """The last unit uses the side tensor where the flag says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side, self.mid = (nn.Linear(D, D) for _ in range(3))
        self.last = Choosing()

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        h, side = self.first(x), self.side(x)
        result: Tensor = self.last(self.mid(torch.relu(h)), side, flag)
        return result


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, 3)

    def forward(self, h: Tensor, side: Tensor, flag: Tensor) -> Tensor:
        result: Tensor = self.linear(torch.where(flag[0] > 0, h + side, h.detach() + h) if flag.numel() > 1 else h)
        return result


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZBH1"])
def test_n05_a_side_tensor_without_a_gradient_in_every_second_micro_batch(schedule: str) -> None:
    batches = rows(3, 4, lambda index: {"x": torch.randn(2, D), "flag": torch.ones(1 + (index + 1) % 2).long()})
    cluster = train_both(make_setup(Side, batches, 4, schedule=schedule, clip_norm=0.1), batches)
    assert len(set(cluster.losses)) == 3


class Reentrant(nn.Module):
    """Checkpointed inside of units, in torch's older way."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(ReentrantBlock() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x)
        for block in self.h:
            h = block(h)
        result: Tensor = h
        return result


class ReentrantBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(0.1)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=True)


@pytest.mark.parametrize("schedule", ["ZBH1", "ZBV"])
def test_n06_reentrant_checkpoints_under_zero_bubble_schedules(schedule: str) -> None:
    batches = rows(2, 4, lambda index: {"x": ids(2, 4, VOCABULARY)})
    owners = list("abba") if schedule == "ZBV" else []
    train_both(make_setup(Reentrant, batches, 4, schedule=schedule, owners=owners), batches)


class Skips(nn.Module):
    """Three skips to the last unit: of an embedding, of the ids, and of integers that the first stage computes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.last = Choice()

    def forward(self, x: Tensor) -> Tensor:
        first = h = self.words(x)
        choice = first.argmax(-1)
        for layer in self.h:
            h = torch.tanh(layer(h))
        result: Tensor = self.last(h + first, x, choice)
        return result


class Choice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.again, self.table = nn.Embedding(VOCABULARY, D), nn.Embedding(D, D)

    def forward(self, h: Tensor, x: Tensor, choice: Tensor) -> Any:
        return h * self.again(x) + self.table(choice)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_n08_skips_of_an_embedding_and_of_integers_train_and_integers_have_no_gradient(num_stages: int) -> None:
    batches = rows(3, 4, lambda index: {"x": ids(2, 4, VOCABULARY)})
    setup = make_setup(Skips, batches, num_stages, clip_norm=0.1)
    train_both(setup, batches)
    last, flow, ends = num_stages - 1, setup.flow, setup.plan.ends
    [integers] = [value for value in flow.values if value.dtype == "int64"]
    [first] = [value for value in flow.values if value.producer == 0 and value.dtype != "int64"]
    assert {integers.key, first.key} <= {*transfers(flow, ends)[0, last]}
    returned = [key for keys in gradient_transfers(flow, ends).values() for key in keys]
    assert first.key in returned
    assert integers.key not in returned


class Straight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first = h = torch.tanh(self.h[0](x))
        for layer in self.h[1:]:
            h = torch.tanh(layer(h))
        return h + first


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_n11_a_tensor_of_stage_0_that_stage_3_adds_goes_straight_there(schedule: str) -> None:
    batches = rows(3, 4, lambda index: {"x": torch.randn(2, D)})
    setup = make_setup(Straight, batches, 4, schedule=schedule, owners=owners_of(schedule, 4), clip_norm=0.1)
    cluster = train_both(setup, batches)
    ways = {(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 3): 1}
    assert {stages: len(keys) for stages, keys in transfers(setup.flow, setup.plan.ends).items()} == ways
    sent = {str(link): count for link, count in cluster.network.sent.items() if "activation" in str(link)}
    apart = [each for each in ways if setup.workers[each[0]] != setup.workers[each[1]]]
    assert sent == {f"{producer}>{consumer}/activation": 3 * 4 for producer, consumer in apart}


def test_n12_each_stage_gets_the_rows_of_its_micro_batch_of_a_mask() -> None:
    seen: list[list[Tensor]] = [[], [], [], []]

    class Masked(nn.Linear):
        def __init__(self, index: int) -> None:
            super().__init__(D, D)
            self.index = index

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            assert attention_mask is not None
            if attention_mask.device.type != "meta":  # else on shapes
                seen[self.index].append(attention_mask.clone())
            return torch.tanh(super().forward(x)) * attention_mask[..., None]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.ModuleList(Masked(index) for index in range(4))

        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            for block in self.h:
                x = block(x, attention_mask)
            return x

    batches = rows(2, 4, lambda index: {"x": torch.randn(2, 5, D), "attention_mask": torch.randint(2, (2, 5))})
    setup = make_setup(Model, batches, 4)
    assert len(setup.plan.stages) == 4
    for each in seen:
        each.clear()
    train_both(setup, batches)
    masks = [inputs["attention_mask"] for batch in batches for inputs in batch[0]]
    assert len({str(mask) for mask in masks}) == 8
    for each in seen:  # in the pipeline, and in one process
        assert all(map(torch.equal, each, masks * 2))
        assert len(each) == 16


class Types(nn.Module):
    """Halves, bytes and doubles cross beside the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(TypedBlock() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        half, count, double = x.bfloat16(), torch.zeros(len(x), dtype=torch.uint8), x.double().sum(-1)
        for block in self.h:
            x, half, count, double = block(x, half, count, double)
        return x + half.float() + count[:, None] + double.float()[:, None]


class TypedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.halves = nn.Linear(D, D), nn.Linear(D, D, dtype=torch.bfloat16)

    def forward(self, x: Tensor, half: Tensor, count: Tensor, double: Tensor) -> tuple[Tensor, ...]:
        assert (half.dtype, count.dtype, double.dtype) == (torch.bfloat16, torch.uint8, torch.float64)
        h = self.linear(x)
        return h, torch.tanh(self.halves(half)), count + 1, double / 3 + h.double().sum(-1)


def test_n14_tensors_of_several_dtypes_arrive_as_they_were() -> None:
    batches = rows(2, 3, lambda index: {"x": torch.randn(2, D)})
    train_both(make_setup(Types, batches), batches)


@pytest.mark.parametrize("lengths", [(128, 129), (5, 9, 3)])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_n15_lengths_differ_from_one_micro_batch_to_the_next(lengths: tuple[int, ...], num_stages: int) -> None:
    batches = rows(2, len(lengths), lambda index: words_and_labels(2, lengths[index]))
    train_both(make_setup(LossInside, batches, num_stages, loss=lambda outputs: outputs["loss"]), batches)


class Recomputed(nn.Module):
    """The mask goes through the checkpointed calls of the container."""

    def __init__(self, is_checkpointed: bool = True) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(Block(0.1) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        h, bias = self.wte(x), (mask == 0) * -1e9
        for block in self.h:
            h = checkpoint(block, h, bias, use_reentrant=False) if self.is_checkpointed else block(h, bias)
        return h


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_n25_a_mask_passes_through_recomputation(num_stages: int) -> None:
    batches = rows(3, 3, lambda index: {"x": ids(2, 4, VOCABULARY), "mask": torch.ones(4, 4).tril().long()})
    cluster = train_both(make_setup(Recomputed, batches, num_stages), batches)
    kept = make_setup(lambda: Recomputed(is_checkpointed=False), batches, num_stages)
    assert cluster.losses == train_plain(kept, batches)[0]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for layer in self.h:
            x = torch.tanh(layer(x)) + first
        return x


def test_n27_two_hundred_steps_with_clipping_do_not_drift() -> None:
    batches = rows(200, 2, lambda index: {"x": torch.randn(2, D)})
    setup = make_setup(Small, batches, clip_norm=0.1)
    cluster = train_both(setup, batches)
    assert cluster.losses != train_plain(make_setup(Small, batches), batches)[0]
