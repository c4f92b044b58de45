"""What a job can say of its step, through real processes: the bits of a plain loop that does the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipesvc
from pipesvc.errors import ErrorCode
from tests.integration import jobs, module_jobs, plain
from tests.integration.comparisons import assert_equal, refusal
from tests.update_rules import halved, no_decay_for_vectors


def make_job(**changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": jobs.mlp,
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        "data": pipesvc.DataSource(jobs.samples, batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=3),
        "seed": 7,
    }
    return pipesvc.Job(**(options | changes))


def make_loop(**changes: Any) -> plain.PlainLoop:
    options: dict[str, Any] = {
        "build": jobs.mlp,
        "source": jobs.samples,
        "loss": jobs.cross_entropy,
        "make_optimizers": lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)],
    }
    return plain.PlainLoop(**(options | changes))


def by_rank(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [each for each in model.parameters() if each.ndim != 1]
    vectors = [each for each in model.parameters() if each.ndim == 1]
    groups: list[Any] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=0.01, weight_decay=0.5)]


def test_a19_parameter_groups_by_pattern(cluster: pipesvc.Client) -> None:
    optimizer = pipesvc.Optimizer(
        torch.optim.AdamW, lr=0.01, weight_decay=0.5, fused=True, groups={"*.bias": {"weight_decay": 0.0}}
    )

    def biases_first(model: nn.Module) -> list[torch.optim.Optimizer]:
        biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
        weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
        groups: list[Any] = [{"params": biases, "weight_decay": 0.0}, {"params": weights}]
        return [torch.optim.AdamW(groups, lr=0.01, weight_decay=0.5, fused=True)]

    assert_equal(cluster.submit(make_job(optimizer=optimizer)), make_loop(make_optimizers=biases_first).run())


def test_parameter_groups_of_a_module_by_a_function(cluster: pipesvc.Client) -> None:
    optimizer = pipesvc.Optimizer(torch.optim.AdamW, lr=0.01, weight_decay=0.5, groups=no_decay_for_vectors)
    data = pipesvc.DataSource(module_jobs.words, batch_size=8)
    run = cluster.submit(make_job(model=module_jobs.Skipping, optimizer=optimizer, data=data))
    truth = make_loop(
        build=module_jobs.Skipping,
        source=module_jobs.words,
        make_optimizers=by_rank,
        call=lambda model, inputs: model(**inputs),
    ).run()
    assert_equal(run, truth)


def test_a19_schedulers_by_step_and_by_epoch(cluster: pipesvc.Client) -> None:
    """A list with the rates of two groups and one cycle; then three epochs and a function among the arguments."""
    optimizer = pipesvc.Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9, groups={"*.bias": {}})
    scheduler = pipesvc.Scheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=[0.5, 0.1], total_steps=20)
    run = cluster.submit(make_job(optimizer=optimizer, scheduler=scheduler, epochs=2))

    def biases_first(model: nn.Module) -> list[torch.optim.Optimizer]:
        named = dict(model.named_parameters())
        groups = [[each for name, each in named.items() if name.endswith(end)] for end in ("bias", "weight")]
        return [torch.optim.SGD([{"params": group} for group in groups], lr=0.1, momentum=0.9)]

    def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.5, 0.1], total_steps=20)

    assert_equal(run, make_loop(make_optimizers=biases_first, make_scheduler=one_cycle, epochs=2).run())

    by_epoch = pipesvc.Scheduler(torch.optim.lr_scheduler.LambdaLR, every="epoch", lr_lambda=halved)
    run = cluster.submit(make_job(scheduler=by_epoch, epochs=3))

    def halving(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, halved)

    assert_equal(run, make_loop(make_scheduler=halving, is_by_epoch=True, epochs=3).run())


def test_a19_a_sparse_table_with_an_optimizer_of_its_own(cluster: pipesvc.Client) -> None:
    optimizers = {
        "0.*": pipesvc.Optimizer(torch.optim.SparseAdam, lr=0.05),
        "*": pipesvc.Optimizer(torch.optim.AdamW, lr=0.05),
    }
    data = pipesvc.DataSource(jobs.numbers, batch_size=8)
    run = cluster.submit(make_job(model=jobs.sparse_table, optimizer=optimizers, data=data))

    def table_apart(model: nn.Module) -> list[torch.optim.Optimizer]:
        table, *rest = model.parameters()
        return [torch.optim.SparseAdam([table], lr=0.05), torch.optim.AdamW(rest, lr=0.05)]

    truth = make_loop(build=jobs.sparse_table, source=jobs.numbers, make_optimizers=table_apart).run()
    assert_equal(run, truth)
    error = refusal(cluster, make_job(model=jobs.sparse_table, optimizer=optimizers["*"], data=data))
    assert "AdamW cannot update '0.weight', whose gradients are sparse" in str(error)


def test_single_values_of_gradients_are_clipped(cluster: pipesvc.Client) -> None:
    truth = make_loop(clip_value=0.01).run()
    assert truth.losses != make_loop().run().losses, "the bound must bite"
    assert_equal(cluster.submit(make_job(clip_value=0.01)), truth)


def test_mini_batches_are_accumulated(cluster: pipesvc.Client) -> None:
    """83 rows in batches of 8, three to a step: the last step of an epoch has two, of 8 rows and of 3."""
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=83), batch_size=8)
    run = cluster.submit(make_job(data=data, accumulate=3, epochs=2, clip_norm=0.1))
    truth = make_loop(source=lambda: jobs.samples(83), accumulate=3, epochs=2, clip_norm=0.1).run()
    assert len(truth.losses) == 8
    assert_equal(run, truth)
    assert run.plan().micro_batches == 12
    assert [step.num_rows for step in run.steps()] == [24, 24, 24, 11] * 2


def test_a19_float16_with_one_scaler_for_all_stages(cluster: pipesvc.Client) -> None:
    """The scale is too large for the first steps: they are skipped on all stages, and logged."""
    scaler = pipesvc.GradScaler(init_scale=2.0**24)
    run = cluster.submit(make_job(autocast="float16", grad_scaler=scaler, clip_norm=0.1))
    truth = make_loop(autocast=torch.float16, init_scale=2.0**24, clip_norm=0.1).run()
    assert_equal(run, truth)
    assert truth.losses != make_loop(autocast=torch.float16, clip_norm=0.1).run().losses
    logged = [each.line for each in run.logs() if "gradients overflowed" in each.line]
    assert "step 1 is skipped where gradients overflowed, the loss scale is 8.38861e+06 now" in logged[0]


def test_bfloat16_in_a_module(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(module_jobs.words, batch_size=8)
    run = cluster.submit(make_job(model=module_jobs.Skipping, data=data, autocast="bfloat16"))
    options: dict[str, Any] = {
        "build": module_jobs.Skipping,
        "source": module_jobs.words,
        "call": lambda model, inputs: model(**inputs),
    }
    truth = make_loop(autocast=torch.bfloat16, **options).run()
    assert truth.losses != make_loop(**options).run().losses
    assert_equal(run, truth)


def test_n03_masked_rows_weigh_over_all_mini_batches_of_a_step(cluster: pipesvc.Client) -> None:
    """Bit-equal to the same micro-batches in one process. The first of each mini-batch has no unmasked row."""
    data = pipesvc.DataSource(pipesvc.Call(jobs.masked_samples, num_masked=9), batch_size=18)
    job = make_job(
        loss=jobs.masked_loss,
        weight=jobs.is_unmasked,
        data=data,
        accumulate=2,
        strategy=pipesvc.Strategy(micro_batches=2, num_stages=2),
    )
    assert pipesvc.verify(cluster, job, num_steps=3).difference is None


def test_a19_a_scheduler_that_needs_a_metric_is_refused_at_submit(cluster: pipesvc.Client) -> None:
    scheduler = pipesvc.Scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau, every="epoch")
    error = refusal(cluster, make_job(scheduler=scheduler))
    assert error.code is ErrorCode.INVALID_JOB
    assert "the scheduler ReduceLROnPlateau needs metrics" in str(error)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (
            pipesvc.Optimizer(torch.optim.SGD, lr=0.1, groups={"*.bais": {"weight_decay": 0.0}}),
            "'*.bais' of groups matches no parameter of the model",
        ),
        (pipesvc.Optimizer(torch.optim.Muon, lr=0.1), "the optimizer does not take '0.bias': Muon only supports 2D"),
        (pipesvc.Optimizer(torch.optim.Muon, lr=0.1), "Give it an optimizer of its own: optimizer={"),
    ],
)
def test_a19_an_optimizer_that_does_not_fit_the_model_is_refused_at_submit(
    cluster: pipesvc.Client, optimizer: pipesvc.Optimizer, said: str
) -> None:
    error = refusal(cluster, make_job(optimizer=optimizer))
    assert error.code is ErrorCode.INVALID_JOB
    assert said in str(error)


def test_a19_muon_trains_the_matrices_beside_another_for_the_rest(cluster: pipesvc.Client) -> None:
    optimizers = {
        "*.bias": pipesvc.Optimizer(torch.optim.AdamW, lr=0.01),
        "*": pipesvc.Optimizer(torch.optim.Muon, lr=0.05),
    }

    def biases_apart(model: nn.Module) -> list[torch.optim.Optimizer]:
        biases = [each for each in model.parameters() if each.ndim == 1]
        matrices = [each for each in model.parameters() if each.ndim == 2]
        return [torch.optim.AdamW(biases, lr=0.01), torch.optim.Muon(matrices, lr=0.05)]

    assert_equal(cluster.submit(make_job(optimizer=optimizers)), make_loop(make_optimizers=biases_apart).run())
