"""The truth is the single-process run: every partition, schedule and optimizer gives its bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pipesvc.core.schedules import FILE, SCHEDULE_NAMES
from pipesvc.wire.links import Link
from tests import torch_tables
from tests.unit.executor.batches import Batch, PlainRun, assert_equal_states, batch_of
from tests.unit.executor.network import Cluster, Setup, assert_equal_to, train, train_both, train_plain
from tests.unit.executor.owners import owners_of

NUM_STEPS = 10
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
CUTS: dict[int, Sequence[int]] = {1: (), 2: (2,), 3: (1, 3), 4: (1, 2, 4)}


def make_layers() -> list[nn.Module]:
    return [nn.Linear(6, 16), nn.ReLU(inplace=True), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]


def make_batches(num_micro_batches: int, num_rows: int = 8, num_steps: int = NUM_STEPS) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(num_steps):
        inputs = torch.randn(num_rows, 6, generator=generator)
        labels = torch.randint(4, (num_rows,), generator=generator)
        batches.append(batch_of(inputs, labels, num_rows, num_micro_batches))
    return batches


@cache
def plain_run(num_micro_batches: int, optimizer: str, clip_norm: float) -> PlainRun:
    setup = Setup(
        make_layers=make_layers, loss=cross_entropy, make_optimizer=OPTIMIZERS[optimizer], clip_norm=clip_norm
    )
    return train_plain(setup, make_batches(num_micro_batches))


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("schedule", ["naive", "GPipe", "1F1B", "ZBH1"])
@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_n26_n28_same_bits_as_one_process(
    num_stages: int, num_micro_batches: int, schedule: str, optimizer: str, clip_norm: float
) -> None:
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[num_stages],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS[optimizer],
        schedule=schedule,
        clip_norm=clip_norm,
    )
    assert_equal_to(train(setup, make_batches(num_micro_batches)), plain_run(num_micro_batches, optimizer, clip_norm))


def test_n26_clipping_is_active() -> None:
    batches = make_batches(4)
    clipped = Setup(make_layers=make_layers, loss=cross_entropy, clip_norm=0.1)
    free = Setup(make_layers=make_layers, loss=cross_entropy)
    assert train_plain(clipped, batches)[0] != train_plain(free, batches)[0]


@pytest.mark.parametrize(
    "owners", [["a", "b", "a", "b"], ["a", "a", "a", "a"], ["a", "b", "b", "a"], ["a", "a", "b", "b"]]
)
@pytest.mark.parametrize("schedule", ["naive", "GPipe", "1F1B", "ZBH1"])
def test_several_stages_on_one_worker(owners: list[str], schedule: str) -> None:
    setup = Setup(
        make_layers=make_layers, cuts=(1, 2, 4), owners=owners, loss=cross_entropy, schedule=schedule, clip_norm=0.1
    )
    train_both(setup, make_batches(4))


@pytest.mark.parametrize("num_micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "ZBV"])
def test_two_stages_on_each_worker_by_schedule(schedule: str, num_micro_batches: int) -> None:
    setup = Setup(
        make_layers=make_layers,
        cuts=(1, 2, 4),
        owners=owners_of(schedule, 4),
        loss=cross_entropy,
        schedule=schedule,
        clip_norm=0.1,
    )
    train_both(setup, make_batches(num_micro_batches))


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_f10_window_of_one_parcel_completes(schedule: str) -> None:
    setup = Setup(
        make_layers=make_layers,
        cuts=(1, 2, 4),
        owners=owners_of(schedule, 4),
        loss=cross_entropy,
        schedule=schedule,
        window=1,
    )
    train_both(setup, make_batches(8, num_steps=4))


@pytest.mark.parametrize(
    ("file", "owners"),
    [("gpipe.csv", "abcd"), ("interleaved.csv", "abab"), ("zbv.csv", "abba"), ("zbv_comms.csv", "abba")],
)
def test_tables_of_torch_train_to_the_same_bits(file: str, owners: str) -> None:
    """The last batch has three micro-batches of the four."""
    setup = Setup(
        make_layers=make_layers,
        cuts=(1, 2, 4),
        owners=list(owners),
        loss=cross_entropy,
        schedule=FILE,
        schedule_text=torch_tables.text(file),
        clip_norm=0.1,
    )
    train_both(setup, [*make_batches(4), *make_batches(3, num_rows=3, num_steps=1)])


def test_n07_two_input_backwards_before_the_first_gradient_is_taken() -> None:
    """Stage 1 gives both gradients before stage 0 runs; they arrive in order, and split is equal to whole."""
    text = "0F0,0F1,0B0,0B1\n1F0,1F1,1I0,1I1,1W0,1W1\n"
    setup = Setup(make_layers=make_layers, cuts=(2,), loss=cross_entropy, schedule=FILE, schedule_text=text)
    cluster = train_both(setup, make_batches(2))
    events = [event for trace in cluster.reported("trace") for event in trace.events if event.step == 1]
    assert [f"{e.action}{e.micro_batch}" for e in events if e.stage == 1] == ["F0", "F1", "I0", "I1", "W0", "W1", "U0"]
    assert [f"{e.action}{e.micro_batch}" for e in events if e.stage == 0] == ["F0", "F1", "B0", "B1", "U0"]


def test_n07_the_second_gradient_waits_for_the_first_that_is_still_under_way() -> None:
    """Stage 0 may run what is ready before what is late, but not an input-backward before an earlier one."""
    setup = Setup(make_layers=make_layers, cuts=(2,), loss=cross_entropy, schedule="ZBH1")
    batches = make_batches(2, num_steps=1)
    cluster = Cluster(setup, has_labels=True)
    cluster.issue(1, batches[0])
    first, second = cluster.runtimes.values()
    for runtime in (first, second):
        while runtime.turn(0.0):
            pass
    late = cluster.network.hold(Link.parse("1>0/gradient"))
    assert not first.turn(0.0)
    cluster.network.release(late)
    cluster.turn_until_idle()
    cluster.close()
    events = [event for trace in cluster.reported("trace") for event in trace.events if event.stage == 0]
    assert [f"{e.action}{e.micro_batch}" for e in events if e.action in "FI"] == ["F0", "F1", "I0", "I1"]
    assert_equal_states(cluster.state(), train_plain(setup, batches)[1])


def test_a_split_backward_counts_as_alive_until_its_w() -> None:
    cluster = Cluster(Setup(make_layers=make_layers, loss=cross_entropy, schedule="ZBH1"), has_labels=True)
    (stage,) = cluster.stages.values()
    inputs, labels, _ = make_batches(1)[0]
    cluster.issue(1, (inputs, labels, [1.0]))
    counts = []
    while cluster.runtimes["worker-0"].turn(0.0):
        counts.append(stage.num_live)
    cluster.close()
    assert counts == [1, 1, 0, 0]  # F, I, W, U


def test_more_in_flight_gives_the_same_bits() -> None:
    setup = Setup(make_layers=make_layers, cuts=(1, 3), loss=cross_entropy, in_flight=5)
    train_both(setup, make_batches(8))


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_n02_rows_weigh_not_micro_batches(num_stages: int) -> None:
    batches = make_batches(2, num_rows=5)
    assert [len(each) for each in batches[0][0]] == [3, 2]
    setup = Setup(make_layers=make_layers, cuts=CUTS[num_stages], loss=cross_entropy)
    cluster = train_both(setup, batches)
    whole = train_plain(setup, make_batches(1, num_rows=5))[1]
    for name, value in cluster.state().items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-5)


def token_mean(output: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(output, labels, ignore_index=-1)


def test_n03_tokens_weigh() -> None:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(12, 6, generator=generator)
    labels = torch.tensor([-1, 2, -1, -1, -1, -1, 0, 1, 2, 3, 0, 1])
    weights = [float((part != -1).sum()) for part in torch.split(labels, [6, 6])]
    assert weights == [1.0, 6.0]
    cut = batch_of(inputs, labels, 12, 2)
    setup = Setup(make_layers=make_layers, cuts=(2,), loss=token_mean)
    cluster = train_both(setup, [(cut[0], cut[1], weights)] * 3)
    whole = train_plain(setup, [batch_of(inputs, labels, 12, 1)] * 3)[1]
    for name, value in cluster.state().items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZBH1"])
def test_n03_a_micro_batch_that_is_all_masked_counts_as_nothing(schedule: str) -> None:
    """Its loss is 0 / 0."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(12, 6, generator=generator)
    labels = torch.tensor([-1, -1, -1, -1, -1, -1, 0, 1, 2, 3, 0, 1])
    cut = batch_of(inputs, labels, 12, 2)
    setup = Setup(make_layers=make_layers, cuts=(2, 3), loss=token_mean, schedule=schedule, check_finite=True)
    cluster = train(setup, [(cut[0], cut[1], [0.0, 6.0])] * 3)
    expected, whole = train_plain(setup, [batch_of(inputs, labels, 12, 1)] * 3)
    torch.testing.assert_close(cluster.losses, expected)
    for name, value in cluster.state().items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_n17_last_batch_of_three_rows(num_stages: int) -> None:
    generator = torch.Generator().manual_seed(3)
    inputs, labels = torch.randn(99, 6, generator=generator), torch.randint(4, (99,), generator=generator)
    batches = [
        batch_of(inputs[start : start + 8], labels[start : start + 8], min(8, 99 - start), 4)
        for start in range(0, 99, 8)
    ]
    assert len(batches) == 13
    assert [len(each) for each in batches[-1][0]] == [1, 1, 1]
    train_both(Setup(make_layers=make_layers, cuts=CUTS[num_stages], loss=cross_entropy), batches)


@pytest.mark.parametrize("cut", [1, 2])
def test_n09_first_operation_in_place(cut: int) -> None:
    """At cut 1 the second stage begins with ReLU(inplace=True)."""
    setup = Setup(make_layers=make_layers, cuts=(cut,), loss=cross_entropy, schedule="GPipe")
    train_both(setup, make_batches(4))
    train_both(Setup(make_layers=make_layers, cuts=(cut,), owners=["a", "a"], loss=cross_entropy), make_batches(4))


def frozen_but_the_last() -> list[nn.Module]:
    layers = make_layers()
    for layer in layers[:-1]:
        layer.requires_grad_(False)
    return layers


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_p05_only_the_last_layer_trains(num_stages: int, clip_norm: float) -> None:
    setup = Setup(
        make_layers=frozen_but_the_last,
        cuts=CUTS[num_stages],
        loss=cross_entropy,
        make_optimizer=OPTIMIZERS["adamw"],
        clip_norm=clip_norm,
    )
    train_both(setup, make_batches(2))


def test_p05_stage_without_parameters() -> None:
    setup = Setup(make_layers=make_layers, cuts=(1, 2, 4, 5), loss=cross_entropy, clip_norm=0.1)
    cluster = train_both(setup, make_batches(2))
    assert cluster.stages[1].trainable == []


def test_n22_default_generator_draws_as_after_torch_manual_seed() -> None:
    torch.manual_seed(2**62 + 5)
    drawn = torch.rand(7)
    torch.default_generator.manual_seed(2**62 + 5)
    assert torch.equal(torch.rand(7), drawn)


def dropout_layers() -> list[nn.Module]:
    return [nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)]


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2, 3)])
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_n22_dropout_does_not_depend_on_the_partition(cuts: Sequence[int], schedule: str) -> None:
    train_both(Setup(make_layers=dropout_layers, cuts=cuts, loss=cross_entropy, schedule=schedule), make_batches(4))
