"""BatchNorm in pipelines: statistics for each micro-batch as plain accumulation has them, or once per mini-batch.

The truth of the deferred way is written down here: the plain loop, in which what each module normalised in a step is
put together, and its running averages take one step towards the statistics of that. Weights and losses have the bits
of the plain loop, for a micro-batch is normalised by its own statistics in both ways. Running statistics agree to
rounding (1e-6): those of a micro-batch come from torch's kernels in float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.recompute import Recompute
from tests.unit.executor import module_network, network
from tests.unit.executor.batches import Batch, assert_equal_states, batch_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.network import Setup, train

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
OWNERS = {"GPipe": "abc", "1F1B": "aba", "Interleaved1F1B": "aaa", "ZBH1": "abc"}


def layers() -> list[nn.Module]:
    return [
        nn.Linear(3, 4),
        nn.BatchNorm1d(4),
        nn.Tanh(),
        nn.BatchNorm1d(4, momentum=None),
        nn.Linear(4, 4),
        nn.BatchNorm1d(4, affine=False, momentum=0.3),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.BatchNorm1d(4)),
        nn.Linear(4, 2),
    ]


class Frozen(nn.BatchNorm1d):
    """Never in train mode, as a pretrained part often is."""

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + torch.tanh(self.norm(self.linear(x)))
        return y


class Net(nn.Module):
    """Blocks, one of which is called twice and one is recomputed in backward; BatchNorm beside them, one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4, momentum=None)
        self.twice = Block()
        self.again = Block()
        self.frozen = Frozen(4)
        self.frozen.eval()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(self.twice(self.norm(self.first(x))))
        h = checkpoint(self.again, h, use_reentrant=False)
        y: Tensor = self.head(self.frozen(h))
        return y


def batches(num_micro_batches: int, num_steps: int = 3) -> list[Batch]:
    """Micro-batches of different rows."""
    torch.manual_seed(1)
    return [batch_of(torch.randn(11, 3) + 3, torch.randn(11, 2), 11, num_micro_batches) for _ in range(num_steps)]


def list_setup(schedule: str = "GPipe", **options: Any) -> Setup:
    owners = list(OWNERS[schedule])
    return Setup(make_layers=layers, cuts=(2, 5), loss=mse_loss, schedule=schedule, owners=owners, **options)


def module_setup(schedule: str = "GPipe", **options: Any) -> ModuleSetup:
    return ModuleSetup(
        **{
            "build": Net,
            "sample": torch.zeros(4, 3),
            "parts": 3,
            "loss": mse_loss,
            "schedule": schedule,
            "owners": list(OWNERS[schedule]),
            **options,
        }
    )


def norms_of(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    return [
        (name, each) for name, each in model.named_modules() if isinstance(each, _BatchNorm) and type(each) is not Fixed
    ]


@contextmanager
def noted(model: nn.Module) -> Iterator[Mapping[tuple[str, int], list[Tensor]]]:
    """By module and number of the call in its forward, what was normalised in each micro-batch."""
    found: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
    calls: dict[str, int] = defaultdict(int)

    def note(name: str) -> Callable[..., None]:
        def called(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if module.training:
                found[name, calls[name]].append(args[0].detach().clone())
                calls[name] += 1

        return called

    handles = [each.register_forward_pre_hook(note(name)) for name, each in norms_of(model)]
    handles.append(model.register_forward_pre_hook(lambda *_: calls.clear()))
    yield found
    for handle in handles:
        handle.remove()


def train_deferred(model: nn.Module, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The plain loop; the state after it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels, weights in batches:
        before = {name: value.clone() for name, value in model.named_buffers()}
        optimizer.zero_grad()
        with noted(model) as found:
            assert labels is not None
            losses = [
                mse_loss(model(given), label) * (weight / sum(weights))
                for given, label, weight in zip(inputs, labels, weights, strict=True)
            ]
        for loss in losses:
            torch.autograd.backward(loss)
        optimizer.step()
        model.load_state_dict(before, strict=False)
        for (name, _), given in found.items():
            step(dict(norms_of(model))[name], torch.cat(given).double())
    return dict(model.state_dict())


def step(norm: _BatchNorm, given: Tensor) -> None:
    """What one forward over all of it would do to the running statistics."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    factor = 1 / norm.num_batches_tracked.item() if norm.momentum is None else norm.momentum
    norm.running_mean.copy_(factor * given.mean(0) + (1 - factor) * norm.running_mean)
    norm.running_var.copy_(factor * given.var(0) + (1 - factor) * norm.running_var)


def assert_as(found: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> None:
    assert found.keys() == plain.keys()
    for name, value in plain.items():
        tolerance = 1e-6 if name.endswith(("running_mean", "running_var")) else 0.0
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
@pytest.mark.parametrize("schedule", OWNERS)
def test_n21_a_list_takes_one_step_of_its_statistics_for_each_mini_batch(schedule: str, num_micro_batches: int) -> None:
    given = batches(num_micro_batches)
    cluster = train(list_setup(schedule, defers_batch_norm=True), given)
    assert_as(cluster.state(), train_deferred(nn.Sequential(*network.built(layers)), given))


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
@pytest.mark.parametrize("schedule", OWNERS)
def test_n21_a_module_takes_one_step_for_each_call_in_its_forward(schedule: str, num_micro_batches: int) -> None:
    given = batches(num_micro_batches)
    cluster = train(module_setup(schedule, defers_batch_norm=True), given)
    torch.manual_seed(network.SEED)
    state = cluster.state()
    assert_as(state, train_deferred(Net(), given))
    assert [state[f"{name}.norm.num_batches_tracked"].item() for name in ("twice", "again")] == [6, 3]
    assert state["frozen.num_batches_tracked"].item() == 0


@pytest.mark.parametrize("make_setup", [list_setup, module_setup])
def test_n21_a_job_that_recomputes_everything_counts_the_same(make_setup: Callable[..., Any]) -> None:
    given = batches(4)
    setup = make_setup("1F1B", defers_batch_norm=True)
    kept, again = (train(replace(setup, recompute=Recompute(is_all=is_all)), given).state() for is_all in (False, True))
    assert_equal_states(again, kept)


def test_a_module_in_one_stage_too() -> None:
    given = batches(3)
    cluster = train(module_setup(parts=1, owners="a", is_recorded=False, defers_batch_norm=True), given)
    torch.manual_seed(network.SEED)
    assert_as(cluster.state(), train_deferred(Net(), given))


def test_the_first_statistics_are_those_of_one_forward_over_the_whole_mini_batch() -> None:
    """Of the first BatchNorm: what others normalise depends on how the ones before cut."""
    (given,) = batches(4, num_steps=1)
    state = train(list_setup(defers_batch_norm=True), [given]).state()
    model = nn.Sequential(*network.built(layers))
    model(torch.cat(given[0]))
    assert_as(
        {name: state[f"1.{name}"] for name in STATISTICS}, {name: model[1].get_buffer(name) for name in STATISTICS}
    )


def test_values_far_from_zero_keep_their_variance() -> None:
    """Sums of squares in float32 would lose it."""
    inputs = torch.tensor([[4096.0 + row / 8] * 3 for row in range(8)])

    def bare() -> list[nn.Module]:
        return [nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 2)]

    setup = Setup(make_layers=bare, cuts=(1,), loss=mse_loss, defers_batch_norm=True)
    state = train(setup, [batch_of(inputs, torch.zeros(8, 2), 8, 4)]).state()
    torch.testing.assert_close(state["0.running_var"], inputs.var(0), rtol=1e-6, atol=0)


def test_n20_per_micro_batch_has_the_bits_of_plain_accumulation() -> None:
    given = batches(4)
    network.train_both(list_setup("1F1B"), given)
    assert train(list_setup(), given).state()["1.num_batches_tracked"].item() == 12


@pytest.mark.parametrize("schedule", OWNERS)
def test_n21_a_module_of_the_user_that_is_recomputed_is_counted_once_for_each_micro_batch(schedule: str) -> None:
    """And so in the same order under each schedule. A plain loop would count it again in each backward."""

    class Kept(Net):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.frozen(self.again(self.twice(self.twice(self.norm(self.first(x)))))))
            return y

    given = batches(4)
    found = train(module_setup(schedule), given)
    losses, state = module_network.train_plain(module_setup(build=Kept), given)
    assert found.losses == losses
    assert_equal_states({name: found.state()[name] for name in state}, state)
    assert state["again.norm.num_batches_tracked"].item() == 12


class Activated(nn.BatchNorm1d):
    """A forward of its own that keeps the statistics as torch does, like those of image model libraries."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class Fixed(nn.BatchNorm1d):
    """Normalises by the running statistics and leaves them alone, also in train mode."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


class Doubling(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def test_classes_with_a_forward_of_their_own_are_taken_where_they_keep_what_torch_keeps() -> None:
    def own() -> list[nn.Module]:
        return [nn.Linear(3, 4), Activated(4), Fixed(4), nn.Linear(4, 2)]

    given = batches(3)
    setup = Setup(make_layers=own, cuts=(2,), loss=mse_loss, defers_batch_norm=True)
    state = train(setup, given).state()
    model = nn.Sequential(*network.built(own))
    assert_as(state, train_deferred(model, given))
    assert state["2.num_batches_tracked"].item() == 0


def test_statistics_of_another_kind_are_refused_by_name() -> None:

    def doubling() -> list[nn.Module]:
        return [nn.Linear(3, 4), Doubling(4), nn.Linear(4, 2)]

    setup = Setup(make_layers=doubling, cuts=(1,), loss=mse_loss)
    train(setup, batches(2))
    with pytest.raises(PipesvcError, match=r"'1' \(Doubling\) keeps running statistics in a way of its own") as caught:
        train(replace(setup, defers_batch_norm=True), batches(2))
    assert caught.value.code is ErrorCode.INVALID_JOB
