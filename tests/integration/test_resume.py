"""A training that goes on from a checkpoint by real processes: the bits of one that was never interrupted."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import lr_scheduler

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import evaluation_jobs, jobs

EPOCH = 5  # steps: 40 rows in batches of 8


def make_job(**changes: Any) -> pipesvc.Job:
    """Dropout, BatchNorm, momentum, a scheduler by step, and data that are shuffled anew in each epoch."""
    options: dict[str, Any] = {
        "model": jobs.with_noise,
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.AdamW, lr=0.01),
        "scheduler": pipesvc.Scheduler(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20),
        "data": pipesvc.DataSource(pipesvc.Call(evaluation_jobs.shuffled, num_rows=40), batch_size=8),
        "strategy": pipesvc.Strategy(micro_batches=2, num_stages=2),
        "clip_norm": 0.5,
        "seed": 3,
    }
    return pipesvc.Job(**(options | changes))


TO_THE_END = make_job(epochs=3)


@pytest.fixture(scope="module")
def whole(cluster: pipesvc.Client) -> pipesvc.Run:
    run = cluster.submit(make_job(epochs=3))
    run.wait()
    return run


@pytest.fixture(scope="module")
def begun(cluster: pipesvc.Client) -> pipesvc.Run:
    """Two steps into the second epoch."""
    run = cluster.submit(make_job(max_steps=EPOCH + 2))
    run.wait()
    return run


def assert_same_end(run: pipesvc.Run, whole: pipesvc.Run) -> None:
    run.wait()
    state, expected = run.state_dict(), whole.state_dict()
    assert list(state) == list(expected)
    assert [name for name in state if not torch.equal(state[name], expected[name])] == []


def training_state(run: pipesvc.Run, folder: Path) -> dict[str, Tensor]:
    run.save_checkpoint(folder)
    return load_file(folder / "training.safetensors")


@pytest.mark.parametrize("num_stages", [3, 1])
def test_s01_a_run_of_two_stages_goes_on_with_three_and_with_one(
    cluster: pipesvc.Client, begun: pipesvc.Run, whole: pipesvc.Run, num_stages: int, tmp_path: Path
) -> None:
    strategy = pipesvc.Strategy(micro_batches=2, num_stages=num_stages, schedule="GPipe")
    run = cluster.submit(make_job(resume=begun, epochs=3, strategy=strategy))
    assert_same_end(run, whole)
    assert [len(each.plan().stages) for each in (begun, run)] == [2, num_stages]
    assert begun.losses() + run.losses() == whole.losses()
    assert [step.index for step in run.steps()] == list(range(EPOCH + 3, 3 * EPOCH + 1))
    assert [step.epoch for step in run.steps()] == [1] * 3 + [2] * EPOCH
    info = run.info()
    assert (info.start.step, info.num_committed_steps, info.num_steps) == (EPOCH + 2, 3 * EPOCH, 3 * EPOCH)
    # Moments and step of each parameter, by its name in the unsplit model; moments have its shape.
    before, after, expected = (training_state(each, tmp_path / each.run_id) for each in (begun, run, whole))
    shapes = {name: each.shape for name, each in jobs.with_noise().named_parameters()}
    moments = {f"{name}/{kind}": shape for name, shape in shapes.items() for kind in ("exp_avg", "exp_avg_sq")}
    counts = {f"{name}/step": torch.Size([]) for name in shapes}
    for found, num_steps in ((before, EPOCH + 2), (after, 3 * EPOCH)):
        assert {name: each.shape for name, each in found.items()} == moments | counts
        assert {float(found[name]) for name in counts} == {num_steps}
    assert [name for name in expected if not torch.equal(after[name], expected[name])] == []


def test_it_goes_on_from_a_folder_by_the_command_line(
    cluster: pipesvc.Client, begun: pipesvc.Run, whole: pipesvc.Run, state_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "made" / "here"
    place = ["--coordinator", cluster.address, "--token-file", str(state_dir / "token")]

    def command(*arguments: str) -> str:
        started = [sys.executable, "-m", "pipesvc", *arguments, *place]
        return subprocess.run(started, capture_output=True, text=True, timeout=100, check=True).stdout

    assert command("checkpoint", begun.run_id, "--out", str(folder)) == (
        f"{folder}: the checkpoint after step {EPOCH + 2}\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["training.safetensors", "weights.safetensors"]
    for index, source in enumerate((str(folder), begun.run_id)):
        run_id = f"{begun.run_id}-{index}"
        command("submit", f"{__name__}:TO_THE_END", "--resume", source, "--run-id", run_id)
        run = cluster.attach(run_id)
        assert_same_end(run, whole)
        assert run.info().start.step == EPOCH + 2
    again = cluster.submit(make_job(resume=folder, max_steps=EPOCH + 3, strategy=one_process()))
    again.wait()
    assert again.losses() == whole.losses()[EPOCH + 2 : EPOCH + 3]


def one_process() -> pipesvc.Strategy:
    return pipesvc.Strategy(micro_batches=2, pipeline=False)


def test_a_checkpoint_of_a_live_run_is_of_one_step(cluster: pipesvc.Client, tmp_path: Path) -> None:
    data = pipesvc.DataSource(pipesvc.Call(jobs.slow_samples, num_rows=80, pause_s=0.02), batch_size=8)
    job = make_job(data=data, max_steps=10)
    live = cluster.submit(job)
    next(iter(live.steps()))
    step = live.save_checkpoint(tmp_path)
    assert 1 <= step < 10
    live.wait()
    run = cluster.submit(dataclasses.replace(job, resume=tmp_path))
    assert_same_end(run, live)
    assert run.losses() == live.losses()[step:]


def test_evaluations_go_on_with_the_steps(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=16, seed=9), batch_size=8)
    evaluation = pipesvc.Evaluation(data=data, every_steps=3)
    first = cluster.submit(make_job(max_steps=6, evaluation=evaluation))
    first.wait()
    run = cluster.submit(make_job(resume=first, max_steps=12, evaluation=evaluation))
    run.wait()
    both = cluster.submit(make_job(max_steps=12, evaluation=evaluation))
    both.wait()
    assert [each.step for each in run.evaluations()] == [9, 12]
    found = [(each.step, each.loss) for part in (first, run) for each in part.evaluations()]
    assert found == [(each.step, each.loss) for each in both.evaluations()]


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    yield from jobs.whole_batches(num_rows=96)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_stream_gives_the_batches_that_come_after(cluster: pipesvc.Client, accumulate: int) -> None:
    def job(begin: int, **changes: Any) -> pipesvc.Job:
        rest = itertools.islice(batches(), begin * accumulate, None)
        data = pipesvc.StreamSource(rest, yields="batch")
        return make_job(data=data, accumulate=accumulate, **changes)

    first, both = cluster.submit(job(0, max_steps=2)), cluster.submit(job(0, max_steps=5))
    first.wait()
    run = cluster.submit(job(2, max_steps=5, resume=first))
    both.wait()
    assert_same_end(run, both)
    assert first.losses() + run.losses() == both.losses()
    assert len(both.losses()) == 5


def test_what_cannot_go_on_is_refused_with_the_way_out(
    cluster: pipesvc.Client, begun: pipesvc.Run, tmp_path: Path
) -> None:
    for job, said, advice in (
        (make_job(resume=begun, max_steps=7), "stands after step 7, and max_steps is 7", "raise it"),
        (
            make_job(resume=begun, epochs=3, accumulate=2),
            "a step of the checkpoint is accumulate=1 x batch_size=8",
            "init=",
        ),
        (
            make_job(resume=begun, epochs=3, scheduler=None),
            "the checkpoint has OneCycleLR, and the job has no",
            "init=",
        ),
        (make_job(resume=begun, epochs=1), "the data end where the checkpoint stands", "raise it"),
        (
            make_job(resume=begun, epochs=3, optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1)),
            "the checkpoint is of AdamW, and the job has SGD",
            "init=",
        ),
        (make_job(resume=begun, epochs=3, model=jobs.mlp), "does not fit the model", "very model of the checkpoint"),
    ):
        with pytest.raises(PipesvcError) as caught:
            cluster.submit(job).wait()
        assert caught.value.code is ErrorCode.INVALID_JOB
        assert said in caught.value.details.message
        assert advice in caught.value.details.advice
    begun.save_checkpoint(tmp_path)
    other = cluster.submit(make_job(max_steps=EPOCH + 2, seed=4))
    other.wait()
    other.save_weights(tmp_path / "weights.safetensors")
    with pytest.raises(PipesvcError, match=f"are of step 7 of run {other.run_id}, and its training state is of step 7"):
        cluster.submit(make_job(resume=tmp_path, epochs=3))
    (tmp_path / "training.safetensors").write_bytes((tmp_path / "weights.safetensors").read_bytes())
    with pytest.raises(PipesvcError, match="not the training state of a checkpoint"):
        cluster.submit(make_job(resume=tmp_path, epochs=3))


class Remembering(torch.optim.SGD):
    """Keeps what no file can hold."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["seen"] = {1}
        return super().step(closure)


def test_an_optimizer_that_cannot_be_saved_costs_no_weights(cluster: pipesvc.Client) -> None:
    job = partial(make_job, optimizer=pipesvc.Optimizer(Remembering, lr=0.1), scheduler=None)
    run = cluster.submit(job(max_steps=2))
    run.wait()
    assert run.state_dict()
    with pytest.raises(PipesvcError, match=r"weights alone: on stage 0, the groups of Remembering\[0\]\['seen'\]"):
        cluster.submit(job(max_steps=4, resume=run))
    said = [line.line for line in run.logs() if "nothing can go on from this checkpoint" in line.line]
    assert len(said) == 2
