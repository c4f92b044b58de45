"""What may cross a boundary, and where the loss may come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.wire.links import Link
from tests.unit.executor.batches import Batch, batch_of
from tests.unit.executor.memory_network import MemoryPort
from tests.unit.executor.network import Cluster, Setup, train_both


class TakesDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)

    def forward(self, value: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.embedding(value["ids"]) * value["scale"], value["mask"]


class TakesPair(nn.Module):
    """Gets the pair as one value, and gives a mask on that needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value: tuple[Tensor, Tensor]) -> dict[str, Any]:
        hidden, mask = value
        return {"hidden": self.linear(hidden) * mask, "mask": mask, "none": None, "number": 3, "unused": hidden * 2}


class ReturnsLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, value: dict[str, Any]) -> Tensor:
        assert value["none"] is None
        assert value["number"] == 3
        result: Tensor = self.linear(value["hidden"]).square().mean()
        return result


def tree_layers() -> list[nn.Module]:
    return [TakesDict(), TakesPair(), ReturnsLoss()]


def dict_batches(num_rows: int = 8, mask_dtype: torch.dtype = torch.bool) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    value = {
        "ids": torch.randint(16, (num_rows,), generator=generator),
        "scale": torch.randn(num_rows, 1, generator=generator),
        "mask": (torch.rand(num_rows, 1, generator=generator) > 0.3).to(mask_dtype),
    }
    return [batch_of(value, None, num_rows, 4)] * 10


@pytest.mark.parametrize("owners", [[], ["a", "a", "a"], ["a", "b", "a"]])
def test_n05_trees_cross_and_the_model_returns_the_loss(owners: list[str]) -> None:
    train_both(Setup(make_layers=tree_layers, cuts=(1, 2), owners=owners), dict_batches())


@pytest.mark.parametrize("owners", ["ab", "aa"])
def test_n13_a_tuple_with_none_a_number_and_a_dict_is_received_as_it_was_given(owners: str) -> None:
    given: list[Any] = []
    received: list[Any] = []

    class Gives(nn.Linear):
        def forward(self, value: Tensor) -> Any:
            h = super().forward(value)
            given.append((h, None, 3, {"aux": torch.tanh(h)}))
            return given[-1]

    class Receives(nn.Linear):
        def forward(self, value: Any) -> Tensor:
            received.append(value)
            h, _, number, more = value
            result: Tensor = super().forward(h + more["aux"]) * number
            return result

    setup = Setup(make_layers=lambda: [Gives(3, 8), Receives(8, 2)], cuts=(1,), owners=list(owners), loss=mean_of)
    train_both(setup, [batch_of(torch.randn(8, 3), None, 8, 4) for _ in range(3)])
    assert len(given) == len(received) == 2 * 3 * 4  # with the plain loop
    for one, other in zip(given, received, strict=True):
        assert [type(each) for each in other] == [Tensor, type(None), int, dict]
        assert (type(other), other[2], list(other[3])) == (tuple, 3, ["aux"])
        assert torch.equal(other[0], one[0])
        assert torch.equal(other[3]["aux"], one[3]["aux"])


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_n24_nothing_is_sent_back_for_a_mask(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for a tensor that the next stage does not use."""
    sent: dict[str, list[Any]] = {}
    send = MemoryPort.send_gradients

    def noted(
        port: MemoryPort, link: Link, step: int, micro_batch: int, gradients: Sequence[Tensor | None], codec: int
    ) -> None:
        shapes = [None if each is None else tuple(each.shape) for each in gradients]
        sent.setdefault(str(link), []).append(shapes)
        send(port, link, step, micro_batch, gradients, codec)

    monkeypatch.setattr(MemoryPort, "send_gradients", noted)
    train_both(Setup(make_layers=tree_layers, cuts=(1, 2)), dict_batches(mask_dtype=dtype))
    assert sent == {
        "1>0/gradient": [[(2, 8), None]] * 40,  # hidden, mask
        "2>1/gradient": [[(2, 8), None, None]] * 40,  # hidden, mask, unused
    }


class TakesTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(3, 5, 4)

    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        result: Tensor = self.bilinear(*value)
        return result


def mean_of(output: Tensor) -> Tensor:
    return output.square().mean()


def tuple_layers() -> list[nn.Module]:
    return [TakesTuple(), nn.Linear(4, 2)]


@pytest.mark.parametrize("cuts", [(), (1,)])
def test_tuple_is_one_value_and_the_loss_is_of_outputs_alone(cuts: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    value = (torch.randn(8, 3, generator=generator), torch.randn(8, 5, generator=generator))
    train_both(Setup(make_layers=tuple_layers, cuts=cuts, loss=mean_of), [batch_of(value, None, 8, 2)] * 5)


def test_transposed_and_expanded_outputs_cross() -> None:
    class Twisted(nn.Module):
        def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
            return value.t(), value[:1].expand(3, -1)

    class Joined(nn.Module):
        def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
            return value[0].contiguous().sum() * value[1].contiguous().square().mean()

    setup = Setup(make_layers=lambda: [nn.Linear(3, 4), Twisted(), Joined()], cuts=(2,))
    train_both(setup, [batch_of(torch.ones(4, 3), None, 4, 2)] * 3)


class Constant(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, value: Tensor) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.5, "gave float, not a scalar tensor"),
        (torch.ones(2), "gave float32 (2,), not a scalar tensor"),
        (torch.ones(()), "a loss that no trainable parameter leads to"),
        ({"a": torch.ones(1)}, "gave {'a': float32 (1,)}, not a scalar tensor"),
    ],
)
def test_loss_that_is_none_is_refused(value: Any, text: str) -> None:
    setup = Setup(make_layers=lambda: [nn.Linear(3, 4), Constant(value)], cuts=(1,))
    error = failure_of(setup, batch_of(torch.ones(4, 3), None, 4, 2))
    assert error.code is ErrorCode.INVALID_JOB
    assert text in error.details.message


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])
def test_n03_of_rows_that_are_all_masked_the_loss_may_be_a_constant(schedule: str) -> None:
    def loss(outputs: Tensor) -> Tensor:
        return outputs.square().mean() if float(outputs.detach().abs().sum()) else torch.zeros(())

    inputs = torch.cat([torch.zeros(2, 3), torch.ones(4, 3)])
    setup = Setup(
        make_layers=lambda: [nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)],
        cuts=(1,),
        loss=loss,
        schedule=schedule,
    )
    parts, labels, _ = batch_of(inputs, None, 6, 3)
    train_both(setup, [(parts, labels, [0.0, 2.0, 2.0])] * 3)
    assert "no trainable parameter" in failure_of(setup, (parts, labels, [2.0, 2.0, 2.0])).details.message


def test_value_that_cannot_travel_is_refused_with_its_place() -> None:
    setup = Setup(make_layers=lambda: [Constant(slice(3)), nn.Linear(4, 1)], cuts=(1,))
    error = failure_of(setup, batch_of(torch.ones(4, 3), None, 4, 2))
    assert error.code is ErrorCode.INVALID_JOB
    assert "slice" in error.details.message
    assert (error.details.where.step, error.details.where.stage, error.details.where.micro_batch) == (1, 0, 0)


def failure_of(setup: Setup, batch: Batch) -> PipesvcError:
    cluster = Cluster(setup, has_labels=batch[1] is not None)
    try:
        cluster.issue(1, batch)
        with pytest.raises(PipesvcError) as caught:
            cluster.turn_until_idle()
    finally:
        cluster.close()
    return caught.value
