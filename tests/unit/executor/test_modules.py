"""Any module: every partition and schedule gives the bits of the plain loop, and each tensor goes where it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2
from tests.unit.executor import modules
from tests.unit.executor.batches import Batch
from tests.unit.executor.module_network import ModuleSetup, train_both, train_plain
from tests.unit.executor.network import Cluster, train
from tests.unit.executor.owners import owners_of


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    loss: Callable[..., Any]
    batches: Callable[[int], list[Batch]]


CASES = {
    "language": Case(modules.Language, modules.token_loss, modules.sentences),
    "unet": Case(modules.UNet, modules.picture_loss, modules.images),
    "towers": Case(modules.Towers, modules.pair_loss, modules.pairs),
}


def make_setup(name: str, num_stages: int, **options: Any) -> ModuleSetup:
    case = CASES[name]
    defaults: dict[str, Any] = {
        "build": case.build,
        "loss": case.loss,
        "sample": case.batches(4)[0][0][0],
        "parts": num_stages,
        "make_optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        "clip_norm": 0.1,
    }
    return ModuleSetup(**defaults | options)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_a09_every_partition_and_schedule_has_the_bits_of_one_process(
    name: str, num_stages: int, schedule: str
) -> None:
    setup = make_setup(name, num_stages, schedule=schedule, owners=owners_of(schedule, num_stages))
    train_both(setup, CASES[name].batches(4))


@pytest.mark.parametrize("schedule", ["ZBH1", "ZBV"])
@pytest.mark.parametrize("name", CASES)
def test_zero_bubble_schedules_too(name: str, schedule: str) -> None:
    setup = make_setup(name, 4, schedule=schedule, owners=owners_of(schedule, 4))
    train_both(setup, CASES[name].batches(8))


@pytest.mark.parametrize("owners", ["aaaa", "abba", "aabb"])
@pytest.mark.parametrize("name", CASES)
def test_stages_of_one_worker_share_the_module(name: str, owners: str) -> None:
    train_both(make_setup(name, 4, owners=list(owners)), CASES[name].batches(4))


@pytest.mark.parametrize("name", CASES)
def test_f10_window_of_one_parcel_completes(name: str) -> None:
    train_both(make_setup(name, 4, window=1), CASES[name].batches(8))


def noisy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return modules.token_loss(logits + torch.rand(()), labels)


@pytest.mark.parametrize("loss", [modules.token_loss, noisy_loss])
def test_n22_random_numbers_do_not_depend_on_the_partition(loss: Callable[..., Any]) -> None:
    """Those of the modules, and those of the loss function. One stage runs the module plainly."""
    batches = modules.sentences(4)
    losses = [train(make_setup("language", parts, loss=loss), batches).losses for parts in (1, 2, 3)]
    assert losses[0] == losses[1] == losses[2]
    assert (losses[0] == train_plain(make_setup("language", 1), batches)[0]) == (loss is modules.token_loss)


@pytest.mark.parametrize("parts", [1, 2])
def test_n22_the_loss_function_draws_by_step_and_micro_batch(parts: int) -> None:
    """Whatever else drew in this process."""
    losses = []
    for seed in (1, 2):
        cluster = Cluster(make_setup("language", parts, loss=noisy_loss), has_labels=True)
        torch.manual_seed(seed)
        losses.append(cluster.train(modules.sentences(4)))
        cluster.close()
    assert losses[0] == losses[1]


def test_clipping_and_dropout_are_active() -> None:
    batches = modules.sentences(4)
    losses = train_plain(make_setup("language", 2), batches)[0]
    assert losses != train_plain(make_setup("language", 2, clip_norm=0.0), batches)[0]
    assert losses != train_plain(make_setup("language", 2, build=lambda: modules.Language(0.0)), batches)[0]


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_n26_norms_are_combined_in_the_order_of_registration(num_stages: int) -> None:
    """Which is not that of the stages here."""
    batches = [(ids, None, weights) for (ids, _, weights) in (_ids_alone(each) for each in modules.sentences(4))]
    setup = make_setup(
        "language",
        num_stages,
        build=modules.LateTable,
        loss=modules.mean_square,
        sample=batches[0][0][0],
        clip_norm=0.01,
    )
    train_both(setup, batches)


def _ids_alone(batch: Batch) -> Batch:
    inputs, _, weights = batch
    return [(each["ids"],) for each in inputs], None, weights


def test_a10_only_what_is_used_crosses() -> None:
    """The skips of a U-Net go straight from their maker to their user; the image goes to stage 0 alone."""
    setup = make_setup("unet", 3, ends=(1, 3, 6))
    cluster = train(setup, modules.images(2, num_steps=1))
    sent = {str(link): count for link, count in cluster.network.sent.items()}
    assert sent == {
        "feeder>0/input": 2,
        "feeder>1/input": 2,
        "feeder>2/input": 2,
        "feeder>2/label": 2,
        "0>1/activation": 2,
        "0>2/activation": 2,
        "1>2/activation": 2,
        "2>1/gradient": 2,
        "2>0/gradient": 2,
        "1>0/gradient": 2,
        **{f"{stage}>0/norm": 1 for stage in (1, 2)},
        **{f"0>{stage}/decision": 1 for stage in (1, 2)},
    }
    links = setup.input_parcels(torch.ones(2, 3, 8, 8))
    assert [isinstance(value, torch.Tensor) for _, value in links] == [True, False, False]


def test_what_is_awaited_is_named() -> None:
    setup = make_setup("unet", 3, ends=(1, 3, 6))
    cluster = Cluster(setup, has_labels=True)
    batch = modules.images(2)[0]
    cluster.issue(1, batch)
    assert cluster.runtimes["worker-0"].turn(0.0)
    while cluster.runtimes["worker-2"].turn(0.0):
        pass
    newest = cluster.ports["worker-2"].reported("progress")[-1]
    cluster.close()
    assert newest.awaiting == "activation of step 1, micro-batch 0 from stage 1"


def test_parameters_are_held_by_one_stage_and_named_as_in_the_plain_module() -> None:
    cluster = Cluster(make_setup("language", 3, owners=list("aba")), has_labels=True)
    cluster.close()
    held = [name for stage in cluster.stages.values() for name in stage.named_parameters()]
    assert sorted(held) == sorted(name for name, _ in modules.Language().named_parameters())
    torch.manual_seed(7)
    plain = modules.Language().state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in cluster.state().items())


class Tied(nn.Module):
    """Two layers with one weight; the last one is apart."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c(torch.relu(self.b(torch.relu(self.a(x))))) + x
        return result


def test_what_is_tied_within_a_stage_has_both_names() -> None:
    batches: list[Batch] = [([torch.ones(2, 5), torch.zeros(2, 5)], None, [2.0, 2.0])] * 3
    setup = make_setup("unet", 2, build=Tied, loss=modules.mean_square, sample=torch.ones(2, 5), ends=(2, 3))
    cluster = train_both(setup, batches)
    names = list(cluster.stages[0].state_dict())
    assert names == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert list(cluster.stages[0].named_parameters()) == ["a.weight", "a.bias", "b.bias"]


class Extra(modules.LateTable):
    def get_extra_state(self) -> Any:
        return torch.ones(1)

    def set_extra_state(self, state: Any) -> None: ...


def test_state_that_is_neither_parameter_nor_buffer_is_refused() -> None:
    sample = (modules.sentences(4)[0][0][0]["ids"],)
    setup = make_setup("language", 2, build=Extra, loss=modules.mean_square, sample=sample)
    with pytest.raises(PipesvcError, match="'_extra_state' is neither a parameter nor a buffer") as caught:
        Cluster(setup, has_labels=False)
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_one_stage_runs_any_module_plainly() -> None:
    """Not recorded: values may decide what it does."""
    batches = modules.images(2)
    setup = make_setup("unet", 1, build=Deciding, is_recorded=False, sample=batches[0][0][0])
    cluster = train(setup, batches)
    losses, state = train_plain(setup, batches)
    assert cluster.losses == losses
    assert all(torch.equal(value, state[name]) for name, value in cluster.state().items())


class Deciding(modules.UNet):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(x)
        return y * 2 if y.mean().item() > 0 else y


def failure(setup: ModuleSetup, batch: Batch) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        train(setup, [batch])
    return caught.value


class Failing(modules.UNet):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mid(self.down2(self.down1(x)))
        if y.shape[0] == 5:
            raise ValueError("boom")
        result: torch.Tensor = self.out(self.up1(torch.cat([self.up2(torch.cat([y, y], 1)), y[:, :4]], 1)))
        return result


def test_f12_exception_in_forward_has_type_text_traceback_and_place() -> None:
    setup = make_setup("unet", 2, build=Failing, ends=(2, 6))
    details = failure(setup, modules.images(2, b=10)[0]).details
    assert (details.code, details.exception_type) == (ErrorCode.STAGE_FAILED, "ValueError")
    assert details.message == "forward of Failing on float32 (5, 3, 8, 8): ValueError: boom"
    assert (details.where.step, details.where.stage, details.where.micro_batch) == (1, 1, 0)
    assert 'raise ValueError("boom")' in details.traceback


def test_inputs_that_were_not_planned_with_are_refused_by_name() -> None:
    inputs, labels, weights = modules.sentences(2)[0]
    short = [{"ids": each["ids"]} for each in inputs]
    details = failure(make_setup("language", 2), (short, labels, weights)).details
    assert details.code is ErrorCode.INVALID_JOB
    assert "have the tensors ids, and the plan was made with ids, padding" in details.message


def test_n03_a_micro_batch_that_is_all_masked_counts_as_nothing() -> None:
    inputs, labels, _ = modules.images(2)[0]
    assert labels is not None
    labels[0] = labels[0] * float("nan")
    setup = make_setup("unet", 3, check_finite=True)
    cluster = train(setup, [(inputs, labels, [0.0, 4.0])])
    losses, state = train_plain(setup, [(inputs[1:], labels[1:], [4.0])])
    assert cluster.losses == losses
    found = cluster.state()
    # Statistics count it, as its forward runs.
    weights = [name for stage in cluster.stages.values() for name in stage.named_parameters()]
    assert weights
    assert [name for name in weights if not torch.equal(found[name], state[name])] == []


def test_state_is_taken_by_stage() -> None:
    cluster = Cluster(make_setup("towers", 2), has_labels=True)
    for port in cluster.ports.values():
        port.tell(save_state=local_pb2.SaveState(step=0))
    cluster.turn_until_idle()
    cluster.close()
    assert {each.stage for each in cluster.reported("state_chunk")} == {0, 1}
