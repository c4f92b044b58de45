"""What a job may say, several things at once: each alone has tests of its own, and few numbers come from one of them.

One small model as a list and as a module, with tied weights, BatchNorm and dropout, under each schedule; the truth is
the plain loop. Deferred statistics are compared with those of one stage, of which `test_batch_norm` has the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.optim import lr_scheduler

from pipesvc.core import split
from pipesvc.core.schedules import splits_backward
from pipesvc.model.deferral import Late
from pipesvc.model.recompute import Recompute
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.executor.optimizing import SchedulerChoice
from pipesvc.worker.executor.scaling import ScalerSettings
from tests.unit.executor import module_network, network
from tests.unit.executor.batches import Batch, assert_equal_states, batch_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.network import Cluster, train
from tests.unit.executor.test_evaluation import evaluate, plain_numbers
from tests.unit.executor.tied_models import ListSetup

D = 8
OWNERS = {"GPipe": "abcd", "1F1B": "abca", "Interleaved1F1B": "abab", "ZBH1": "abcd", "ZBV": "abba"}
ALL = Recompute(is_all=True)
SCALER = ScalerSettings(init_scale=2.0**17, growth_factor=2.0, backoff_factor=0.5, growth_interval=2)
MASKED = [4.0, 0.0, 3.0, 0.0]  # weights of micro-batches


def layers(*, is_tied: bool = True, frozen: Sequence[int] = ()) -> list[nn.Module]:
    made: list[Any] = [
        nn.Linear(6, D),
        nn.BatchNorm1d(D),
        nn.Dropout(0.2),
        nn.Linear(D, D),
        nn.Tanh(),
        nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D, momentum=None)),
        nn.Linear(D, D),
        nn.Linear(D, 4),
    ]
    if is_tied:
        made[6].weight = made[3].weight
    for index in frozen:
        made[index].requires_grad_(False)
    return made


class Net(nn.Module):
    """A skip over all stages, dropout between units, and a weight of the first block that is used at the end too."""

    def __init__(self, *, is_tied: bool = True, frozen: Sequence[str] = ()) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, D), nn.BatchNorm1d(D)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Dropout(0.2)) for _ in range(3)
        )
        self.mix, self.head = nn.Linear(D, D), nn.Linear(D, 4)
        if is_tied:
            self.mix.weight = self.blocks.get_submodule("0.0").weight  # type: ignore[assignment]
        for name in frozen:
            self.get_submodule(name).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = skip = self.norm(self.first(x))
        for block in self.blocks:
            h = torch.tanh(block(h)) + h
        logits: Tensor = self.head(dropout(self.mix(h), 0.1, self.training) + skip)
        return logits


AnySetup = ListSetup | ModuleSetup


def make_setup(kind: str, schedule: str, *, is_tied: bool = True, **options: Any) -> AnySetup:
    common: dict[str, Any] = {
        "loss": cross_entropy,
        "schedule": schedule,
        "owners": list(OWNERS[schedule]),
        "make_optimizer": partial(torch.optim.AdamW, lr=0.01),
    }
    if kind == "list":
        common |= {"make_layers": partial(layers, is_tied=is_tied), "cuts": (2, 4, 6)}
        return ListSetup(**common | options)
    common |= {"build": partial(Net, is_tied=is_tied), "sample": torch.zeros(4, 6), "parts": 4}
    return ModuleSetup(**common | options)


def make_batches(num_micro_batches: int = 4, num_steps: int = 3, weights: Sequence[float] | None = None) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(num_steps):
        x, y = torch.randn(16, 6, generator=generator), torch.randint(4, (16,), generator=generator)
        inputs, labels, rows = batch_of(x, y, 16, num_micro_batches)
        found.append((inputs, labels, rows if weights is None else list(weights)))
    return found


def by_hand(model: nn.Module) -> list[torch.optim.Optimizer]:
    """As `SEVERAL` has it: the last layer apart, and no decay for biases."""
    named = dict(model.named_parameters())
    apart = [named.pop(name) for name in list(named) if name.startswith(("7.", "head."))]
    biases = [named.pop(name) for name in list(named) if name.endswith("bias")]
    rest = list(named.values())
    trained = [[each for each in group if each.requires_grad] for group in (biases, rest)]
    groups: list[Any] = [{"params": trained[0], "weight_decay": 0.0}, {"params": trained[1]}]
    return [torch.optim.SGD(apart, lr=0.1, momentum=0.9), torch.optim.AdamW(groups, lr=0.01)]


SEVERAL: dict[str, Any] = {
    "more_optimizers": {"[7h]*": partial(torch.optim.SGD, lr=0.1, momentum=0.9)},
    "groups": {"*bias": {"weight_decay": 0.0}},
    "plain_optimizers": by_hand,
}
BY_EPOCH = SchedulerChoice(make=partial(lr_scheduler.StepLR, step_size=1, gamma=0.5), is_by_epoch=True)
BY_STEP = replace(BY_EPOCH, is_by_epoch=False)
# What a job says, and its batches. Under autocast nothing is tied: its gradients are added in float32 then.
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clip norm, accumulated, by epoch": (
        {"clip_norm": 0.1, "scheduler": BY_EPOCH},
        {"num_micro_batches": 8, "num_steps": 6},
    ),
    "clip value, masked": ({"clip_value": 0.01}, {"weights": MASKED}),
    "recompute, clip norm, masked": ({"recompute": ALL, "clip_norm": 0.1}, {"weights": MASKED}),
    "several optimizers, groups, clip norm, by step": (SEVERAL | {"clip_norm": 0.1, "scheduler": BY_STEP}, {}),
    "bfloat16, clip norm, accumulated": (
        {"autocast": torch.bfloat16, "clip_norm": 0.1, "is_tied": False},
        {"num_micro_batches": 8},
    ),
    "float16, recompute, scaler, clip norm": (
        {"autocast": torch.float16, "scaler": SCALER, "recompute": ALL, "clip_norm": 0.1, "is_tied": False},
        {"num_steps": 6},
    ),
    "several optimizers, scaler, clip value, by epoch": (
        SEVERAL | {"scaler": SCALER, "clip_value": 0.01, "scheduler": BY_EPOCH},
        {"num_steps": 6},
    ),
    "deferred, accumulated": ({"defers_batch_norm": True}, {"num_micro_batches": 8}),
    "deferred, recompute, masked": ({"defers_batch_norm": True, "recompute": ALL}, {"weights": MASKED}),
    "deferred, float16, scaler, recompute": (
        {"autocast": torch.float16, "scaler": SCALER, "recompute": ALL, "defers_batch_norm": True, "is_tied": False},
        {"num_steps": 6},
    ),
}
KINDS = ("list", "module")
# Each job under each schedule; list and module take turns.
CASES = [
    (name, schedule, KINDS[(one + other) % 2])
    for (one, name), (other, schedule) in product(enumerate(JOBS), enumerate(OWNERS))
]


def assert_as_one_process(setup: AnySetup, batches: Sequence[Batch]) -> Cluster:
    cluster = train(setup, batches)
    run = module_network.train_plain if isinstance(setup, ModuleSetup) else network.train_plain
    losses, state = run(setup, batches)  # type: ignore[arg-type]
    assert cluster.losses == losses
    found = {name: cluster.state()[name] for name in state}
    if setup.defers_batch_norm:  # weights do not depend on it
        kept = [name for name in state if name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
        assert not any(torch.equal(found[name], state[name]) for name in kept)
        assert {int(found[name]) for name in kept if name.endswith("tracked")} == {len(batches)}
        alone: dict[str, Any] = {"owners": ["a"], "schedule": "1F1B", "recompute": Recompute()}
        alone |= {"cuts": ()} if isinstance(setup, ListSetup) else {"parts": 1}
        of_one = train(replace(setup, **alone), batches).state()
        state |= {name: of_one[name] for name in kept}
    assert_equal_states(found, state)
    return cluster


@pytest.mark.parametrize(("name", "schedule", "kind"), CASES)
def test_a_job_under_each_schedule(name: str, schedule: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    accumulate = Late.accumulate

    def counted(late: Late) -> None:
        counts.append(len(late))
        accumulate(late)

    monkeypatch.setattr(Late, "accumulate", counted)
    options, given = JOBS[name]
    setup = make_setup(kind, schedule, **options)
    assert_as_one_process(setup, make_batches(**given))
    assert bool(sum(counts)) == splits_backward(schedule)
    if setup.autocast is torch.float16:
        scales = [SCALER.init_scale, *setup.plain_scales]
        assert any(before > after for before, after in pairwise(scales))  # a step was skipped
        assert any(before <= after for before, after in pairwise(scales))


# Layers and modules by stage.
FROZEN: dict[str, list[Sequence[Any]]] = {
    "list": [(0, 1), (3,), (5,), (6, 7), (0, 1, 3, 5)],
    "module": [("first", "norm"), ("blocks.0",), ("blocks",), ("mix", "head"), ("first", "norm", "blocks")],
}


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("schedule", OWNERS)
def test_p05_a_stage_that_trains_nothing(schedule: str, place: int) -> None:
    kind = KINDS[(list(OWNERS).index(schedule) + place) % 2]
    build = partial(layers if kind == "list" else Net, is_tied=False, frozen=FROZEN[kind][place])
    made: dict[str, Any] = {"make_layers" if kind == "list" else "build": build}
    setup = make_setup(kind, schedule, clip_norm=0.1, scaler=SCALER, recompute=ALL, **made)
    cluster = assert_as_one_process(setup, make_batches())
    assert kind == "module" or not all(stage.trainable for stage in cluster.stages.values())


def plain_model(setup: AnySetup) -> nn.Module:
    return setup.build() if isinstance(setup, ModuleSetup) else nn.Sequential(*setup.make_layers())


@pytest.mark.parametrize("schedule", OWNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_between_steps_leave_everything_as_it_is(kind: str, schedule: str) -> None:
    """With another number of micro-batches, one of them masked, through windows of one parcel."""
    setup = make_setup(
        kind,
        schedule,
        autocast=torch.bfloat16,
        scaler=SCALER,
        scheduler=BY_EPOCH,
        recompute=ALL,
        defers_batch_norm=True,
        window=1,
    )
    batches, data = make_batches(num_steps=5), make_batches(3, 2, [1.0, 0.0, 5.0])
    cluster, losses = Cluster(setup, has_labels=True), []
    for step, batch in enumerate(batches, 1):
        cluster.issue(step, batch)
        cluster.turn_until_idle()
        losses += [each.loss for each in cluster.reported("step_applied") if each.HasField("loss")]
        before = {name: value.clone() for name, value in cluster.state().items()}
        found = evaluate(cluster, data, step)
        assert_equal_states(cluster.state(), before)
        model = plain_model(setup)
        model.load_state_dict(before)
        model.eval()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert found == plain_numbers(model, [cross_entropy], data)
        for port in cluster.ports.values():
            port.reports.clear()
    cluster.close()
    other = train(setup, batches)
    assert losses == other.losses
    assert_equal_states(cluster.state(), other.state())


@pytest.mark.parametrize("schedule", ["1F1B", "ZBV"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_draws_nothing_and_reads_the_statistics(kind: str, schedule: str) -> None:
    setup = make_setup(kind, schedule, defers_batch_norm=True, recompute=ALL)
    cluster = Cluster(setup, has_labels=False)
    inputs, _, rows = make_batches(3, 1)[0]
    for stage in cluster.stages.values():  # as after training
        for name, value in stage.state_dict().items():
            if name.endswith("running_mean"):
                value.fill_(0.5)
    for index, each in enumerate(inputs):
        for link, value in setup.input_parcels(each):
            cluster.network.ports[-1].send_parcel(link, 1, index, value)
    issue = local_pb2.IssueStep(
        step=1, shares=split.shares(rows), rows=map(int, rows), kind=local_pb2.PASS_KIND_PREDICTION
    )
    before = {name: value.clone() for name, value in cluster.state().items()}
    for port in cluster.ports.values():
        port.tell(issue_step=issue)
    cluster.turn_until_idle()
    cluster.close()
    parts = sorted(cluster.reported("output_part"), key=lambda part: part.micro_batch)
    found = [torch.frombuffer(bytearray(part.data), dtype=torch.float32).view(*part.shape) for part in parts]
    model = plain_model(setup)
    model.load_state_dict(before)
    model.eval()
    with torch.no_grad():
        assert [torch.equal(one, model(each)) for one, each in zip(found, inputs, strict=True)] == [True] * 3
    assert_equal_states(cluster.state(), before)
