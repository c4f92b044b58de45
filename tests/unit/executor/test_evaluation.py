"""Passes without a backward between the steps of executors: eval() mode, no graph, and training as if they were not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.core import split
from pipesvc.model.calling import arguments_of
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.executor.optimizing import SchedulerChoice
from pipesvc.worker.executor.passes import EvalMode
from pipesvc.worker.executor.routes import activation_link, label_link
from pipesvc.worker.executor.scaling import ScalerSettings
from tests.unit.executor import modules
from tests.unit.executor.batches import Batch, batch_of, copied
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_plain as train_module
from tests.unit.executor.network import SEED, Cluster, JobSetup, Setup, assert_equal_to, train_plain
from tests.unit.executor.test_modules import make_setup

# What the reports of a test have said of its metrics.
WARNINGS: list[str] = []


def noisy_layers() -> list[nn.Module]:
    frozen = nn.BatchNorm1d(6)
    frozen.eval()
    return [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), frozen, nn.Linear(6, 3)]


def spread(outputs: Tensor, labels: Tensor) -> float:
    return float(outputs.max() - outputs.min())


def random_batches(num_batches: int, num_micro_batches: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(8, 6, generator=generator) for _ in range(num_batches)]
    labels = [torch.randint(3, (8,), generator=generator) for _ in range(num_batches)]
    return [batch_of(x, y, 8, num_micro_batches) for x, y in zip(inputs, labels, strict=True)]


def evaluate(cluster: Cluster, batches: Sequence[Batch], after_step: int) -> list[list[float]]:
    """Loss and metrics of each batch, as the last stage reports them."""
    for port in cluster.ports.values():
        port.reports.clear()
    feeder = cluster.network.ports[-1]
    for number, (inputs, labels, weights) in enumerate(batches, 1):
        for index, each in enumerate(inputs):
            for link, value in cluster.setup.input_parcels(each):
                feeder.send_parcel(link, number, index, value)
            if labels is not None:
                feeder.send_parcel(label_link(cluster.setup.num_stages), number, index, labels[index])
        issue = local_pb2.IssueStep(
            step=number,
            shares=split.shares(weights),
            kind=local_pb2.PASS_KIND_EVALUATION,
            after_step=after_step,
        )
        for port in cluster.ports.values():
            port.tell(issue_step=issue)
    cluster.turn_until_idle()
    reports = cluster.reported("step_applied")
    stages = range(cluster.setup.num_stages)
    assert sorted((each.step, each.stage) for each in reports) == [
        (number, stage) for number in range(1, len(batches) + 1) for stage in stages
    ]
    assert all(each.kind == local_pb2.PASS_KIND_EVALUATION for each in reports)
    WARNINGS.extend(warning for each in reports for warning in each.metric_warnings)
    return [[each.loss, *each.metrics] for each in reports if each.HasField("loss")]


def train_with_evaluations(
    setup: JobSetup, batches: Sequence[Batch], data: Sequence[Batch], *, is_repeated: bool = True
) -> list[list[list[float]]]:
    """Trains with an evaluation after each step, which is made twice and leaves no trace, and insists on the plain
    loop's numbers; gives those of evaluations."""
    cluster = Cluster(setup, has_labels=batches[0][1] is not None)
    try:
        found, losses, modes = [], [], modes_of(cluster)
        for step, batch in enumerate(batches, 1):
            cluster.issue(step, batch)
            cluster.turn_until_idle()
            losses += [each.loss for each in cluster.reported("step_applied") if each.HasField("loss")]
            assert modes_of(cluster) == modes
            state = torch.get_rng_state()
            found.append(evaluate(cluster, data, step))
            assert not is_repeated or evaluate(cluster, data, step) == found[-1]
            assert torch.equal(torch.get_rng_state(), state)
            for port in cluster.ports.values():
                port.reports.clear()
        cluster.losses = losses
        assert all(stage.num_live == 0 for stage in cluster.stages.values())
    finally:
        cluster.close()
    plain = train_plain(setup, batches) if isinstance(setup, Setup) else train_module(_module(setup), batches)
    assert_equal_to(cluster, plain)
    return found


def modes_of(cluster: Cluster) -> list[bool]:
    roots = [root for _, stage in sorted(cluster.stages.items()) for root in stage.roots().values()]
    return [module.training for root in roots for module in root.modules()]


def _module(setup: JobSetup) -> ModuleSetup:
    assert isinstance(setup, ModuleSetup)
    return setup


def plain_numbers(
    call: Callable[[Any], Any], functions: Sequence[Callable[..., Any]], data: Sequence[Batch]
) -> list[list[float]]:
    numbers = []
    for inputs, labels, weights in data:
        totals = [0.0] * len(functions)
        for index, share in enumerate(split.shares(weights)):
            with torch.no_grad():
                outputs = call(copied(inputs[index]))
                arguments = (outputs,) if labels is None else (outputs, labels[index])
                values = [float(function(*arguments)) for function in functions]
            totals = [total + share * value for total, value in zip(totals, values, strict=True)]
        numbers.append(totals)
    return numbers


@pytest.mark.parametrize("owners", ["ab", "aa"])
def test_n19_two_evaluations_of_the_same_weights_are_equal_and_training_is_as_without_them(owners: str) -> None:
    loss = torch.nn.functional.cross_entropy
    setup = MeasuringSetup(make_layers=noisy_layers, cuts=(2,), owners=owners, loss=loss)
    batches, data = random_batches(3, 4), random_batches(2, 3)
    first, *_, last = train_with_evaluations(setup, batches, data)
    torch.manual_seed(SEED)
    model = nn.Sequential(*noisy_layers())
    for number, found in ((1, first), (3, last)):
        model.load_state_dict(train_plain(setup, batches[:number])[1])
        model.eval()
        assert found == plain_numbers(model, [loss, spread], data)


@pytest.mark.parametrize("is_by_epoch", [False, True])
def test_evaluations_are_cast_and_touch_neither_schedulers_nor_scaler(is_by_epoch: bool) -> None:
    """Epochs have four steps, and an evaluation says none."""
    loss = torch.nn.functional.cross_entropy
    setup = MeasuringSetup(
        make_layers=noisy_layers,
        cuts=(2,),
        loss=loss,
        autocast=torch.bfloat16,
        scaler=ScalerSettings(init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2),
        scheduler=SchedulerChoice(
            make=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5), is_by_epoch=is_by_epoch
        ),
    )
    batches, data = random_batches(6, 4), random_batches(2, 3)
    *_, last = train_with_evaluations(setup, batches, data)
    torch.manual_seed(SEED)
    model = nn.Sequential(*noisy_layers())
    model.load_state_dict(train_plain(setup, batches)[1])
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert last == plain_numbers(model, [loss, spread], data)


class MeasuringSetup(Setup):
    def spec(self, index: int) -> Any:
        import dataclasses

        return dataclasses.replace(super().spec(index), metrics=(("spread", spread),))


@pytest.mark.parametrize("name", ["language", "unet", "towers"])
@pytest.mark.parametrize("num_stages", [1, 3])
def test_modules_that_are_replayed_are_evaluated_like_plain_ones(name: str, num_stages: int) -> None:
    setup = make_setup(name, num_stages, clip_norm=0.0)
    batches = _batches_of(name)
    *_, last = train_with_evaluations(setup, batches(4)[:2], batches(2))
    model = setup.build()
    model.load_state_dict(train_module(setup, batches(4)[:2])[1])
    model.eval()
    assert setup.loss is not None
    assert last == plain_numbers(lambda value: called(model, value), [setup.loss], batches(2))


def _batches_of(name: str) -> Callable[[int], list[Batch]]:
    found: dict[str, Callable[[int], list[Batch]]] = {
        "language": modules.sentences,
        "unet": modules.images,
        "towers": modules.pairs,
    }
    return found[name]


def called(model: nn.Module, value: Any) -> Any:
    args, kwargs = arguments_of(model.forward, value)
    return model(*args, **kwargs)


class Passing(nn.Module):
    """In eval() mode the dropout gives back what it got, and only what it got is used by the later stage."""

    def __init__(self, *, as_function: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)
        self.as_function = as_function

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = nn.functional.dropout(x, 0.5, self.training) if self.as_function else self.drop(x)
        z = self.second(y)
        out: Tensor = self.third(z) + x
        return out


@pytest.mark.parametrize("as_function", [False, True])
def test_a_dropout_that_gives_back_its_argument_does_not_hide_it(as_function: bool) -> None:
    batches = [(inputs, None, weights) for inputs, _, weights in random_batches(2, 2)]
    setup = ModuleSetup(
        build=partial(Passing, as_function=as_function),
        loss=modules.mean_square,
        sample=batches[0][0][0],
        parts=2,
        ends=(2, 3) if as_function else (3, 4),
    )
    *_, last = train_with_evaluations(setup, batches, batches)
    model = setup.build()
    model.load_state_dict(train_module(setup, batches)[1])
    model.eval()
    assert last == plain_numbers(model, [modules.mean_square], batches)


def test_each_module_gets_its_own_mode_back() -> None:
    frozen = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(frozen, nn.Dropout()))
    frozen.eval()
    mode = EvalMode([model, model])
    mode.enter()
    mode.enter()
    assert not any(each.training for each in model.modules())
    mode.leave()
    mode.leave()
    assert [each.training for each in model.modules()] == [True, True, True, False, True]


def test_no_graph_is_kept_of_an_evaluation() -> None:
    kept: list[bool] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        kept.append(outputs.requires_grad)
        return nn.functional.cross_entropy(outputs, labels)

    train_with_evaluations(
        Setup(make_layers=noisy_layers, cuts=(2,), loss=loss), random_batches(1, 1), random_batches(1, 1)
    )
    assert kept == [True, False, False, True]  # the last one is the plain loop's


def test_a_first_stage_makes_no_more_than_is_taken_from_it() -> None:
    """The second stage does not run at all: of 16 activations one is made, and the stage says for whom it waits."""
    setup = Setup(make_layers=noisy_layers, cuts=(2,), loss=nn.functional.cross_entropy)
    (batch,) = [batch_of(torch.randn(16, 6), torch.randint(3, (16,)), 16, 16)]
    cluster = Cluster(setup, has_labels=False)
    try:
        first, feeder = cluster.runtimes["worker-0"], cluster.network.ports[-1]
        for index, each in enumerate(batch[0]):
            for link, value in setup.input_parcels(each):
                feeder.send_parcel(link, 1, index, value)
        for port in cluster.ports.values():
            port.tell(
                issue_step=local_pb2.IssueStep(
                    step=1, shares=split.shares(batch[2]), rows=[1] * 16, kind=local_pb2.PASS_KIND_PREDICTION
                )
            )
        while first.turn(0.0):
            pass
        assert cluster.network.sent[activation_link(0, 1)] == 1
        said = cluster.ports["worker-0"].reported("progress")
        assert said[-1].awaiting == "stage 1 to take what was sent on 0>1/activation"
        cluster.turn_until_idle()
        assert cluster.network.sent[activation_link(0, 1)] == 16
    finally:
        cluster.close()
