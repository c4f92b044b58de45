"""Predictions by real processes: the outputs of the plain model in eval() mode, in order, at the reader's pace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import pipesvc
from pipesvc.coordinator.limits import WINDOW_OUTPUTS
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import evaluation_jobs, jobs
from tests.integration.evaluation_jobs import make_job
from tests.waiting import until

BATCH = 8


def inputs(num_rows: int, seed: int = 5) -> list[Tensor]:
    rows = [row for row, _ in jobs.samples(num_rows, seed)]
    return [torch.stack(rows[start : start + BATCH]) for start in range(0, num_rows, BATCH)]


def plain_outputs(model: nn.Module, batches: list[Tensor], parts: int) -> list[Tensor]:
    """As micro-batches, for a product of other sizes may be rounded in another way."""
    model.eval()
    with torch.no_grad():
        return [torch.cat([model(part) for part in torch.tensor_split(batch, parts)]) for batch in batches]


def test_s03_outputs_of_a_trained_model_come_in_the_order_of_the_inputs(cluster: pipesvc.Client) -> None:
    """A training job with dropout and BatchNorm; the data has labels, which nobody reads."""
    job = make_job(None, model=jobs.with_noise)
    trained = cluster.submit(job)
    trained.wait()
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=24, seed=5), batch_size=BATCH)
    found = list(cluster.predict(job, data, weights=trained))
    model = jobs.with_noise()
    model.load_state_dict(trained.state_dict())
    expected = plain_outputs(model, inputs(24), 4)
    assert len(found) == 3
    assert all(map(torch.equal, found, expected))


def test_a_file_of_weights_and_an_iterable_of_batches(cluster: pipesvc.Client, tmp_path: Path) -> None:
    torch.manual_seed(99)
    model = jobs.mlp(2)
    path = tmp_path / "own.safetensors"
    save_file(model.state_dict(), path)
    for _ in range(2):  # the second time the coordinator has the file
        predictions = cluster.predict(make_job(None), inputs(16), weights=path, micro_batches=2)
        assert all(map(torch.equal, predictions, plain_outputs(model, inputs(16), 2)))
        assert list(predictions) == []
        assert predictions.run.state == "COMPLETED"


def test_a_module_gives_its_own_structure(cluster: pipesvc.Client) -> None:
    job = make_job(None, model=evaluation_jobs.Structured, loss=None, data=structured(), strategy=three_stages())
    [found] = cluster.predict(job, structured())
    torch.manual_seed(0)
    model = evaluation_jobs.Structured()
    model.eval()
    rows = torch.stack(list(itertools.islice(jobs.inputs_alone(4), 4)))
    parts = [model(part) for part in torch.split(rows, 2)]
    assert list(found) == ["logits", "states", "name"]
    assert torch.equal(found["logits"], torch.cat([part["logits"] for part in parts]))
    assert isinstance(found["states"], tuple)
    for index, state in enumerate(found["states"]):
        assert torch.equal(state, torch.cat([part["states"][index] for part in parts]))
    assert found["name"] == "structured"


def structured() -> pipesvc.DataSource:
    return pipesvc.DataSource(pipesvc.Call(jobs.inputs_alone, num_rows=4), batch_size=4, labels=False)


def three_stages() -> pipesvc.Strategy:
    return pipesvc.Strategy(num_stages=3, micro_batches=2)


def test_a_slow_reader_holds_the_run_back(cluster: pipesvc.Client) -> None:
    """It goes ahead as far as it may, and no further: a moment later it stands where it stood."""
    found = []
    with cluster.predict(make_job(None), endless()) as predictions:
        for num_read in (1, 2):
            found.append(next(predictions))
            furthest = num_read + WINDOW_OUTPUTS
            until(lambda: predictions.run.info().num_committed_steps >= furthest, f"step {furthest}")  # noqa: B023
            time.sleep(0.2)
            assert predictions.run.info().num_committed_steps == furthest
    assert not torch.equal(*found)
    assert predictions.run.state == "CANCELLED"


def endless() -> Iterator[Tensor]:
    for seed in itertools.count():
        yield torch.randn(BATCH, jobs.WIDTH, generator=torch.Generator().manual_seed(seed))


def test_a_training_begins_with_weights_of_a_file(cluster: pipesvc.Client, tmp_path: Path) -> None:
    first = cluster.submit(make_job(None, optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1)))
    first.wait()
    path = tmp_path / "first.safetensors"
    first.save_weights(path)
    sgd = pipesvc.Optimizer(torch.optim.SGD, lr=0.1)
    again = cluster.submit(make_job(None, optimizer=sgd, init=path))
    twice = cluster.submit(make_job(None, optimizer=sgd, epochs=2))
    by_run = cluster.submit(make_job(None, optimizer=sgd, init=first))
    for run in (again, twice, by_run):
        run.wait()
    assert again.losses() == by_run.losses() == twice.losses()[5:]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"0.weight": torch.zeros(3, 8)}, "0.weight is [3, 8] there and [8, 8] in the model"),
        ({"extra": torch.zeros(1)}, "the model has no extra"),
        ({"4.bias": None}, "it has no 4.bias"),
    ],
)
def test_weights_that_do_not_fit_are_refused_at_submit(
    cluster: pipesvc.Client, tmp_path: Path, state: dict[str, Any], said: str
) -> None:
    path = tmp_path / "other.safetensors"
    changed = jobs.mlp(2).state_dict() | state
    save_file({name: value for name, value in changed.items() if value is not None}, path)
    with pytest.raises(PipesvcError) as caught:
        cluster.predict(make_job(None), inputs(8), weights=path)
    assert caught.value.code == ErrorCode.INVALID_JOB
    assert f"the file {str(path)!r} does not fit the model: {said}" in caught.value.details.message


def test_weights_of_a_run_that_do_not_fit_are_refused_with_its_id(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(None))
    run.wait()
    with pytest.raises(PipesvcError, match=f"the state of run {run.run_id} does not fit the model: it has no 6.weight"):
        cluster.submit(make_job(None, model=pipesvc.Call(jobs.mlp, depth=3), init=run))


def test_what_is_no_safetensors_file_is_refused_at_submit(cluster: pipesvc.Client, tmp_path: Path) -> None:
    path = tmp_path / "text.safetensors"
    path.write_text("not the weights that you are looking for")
    with pytest.raises(PipesvcError, match=f"INVALID_JOB: the file {str(path)!r} cannot be read"):
        cluster.predict(make_job(None), inputs(8), weights=path)


def test_outputs_without_rows_are_refused_with_the_way_out(cluster: pipesvc.Client) -> None:
    job = make_job(None, model=jobs.self_scoring, loss=None, data=structured())
    with pytest.raises(PipesvcError) as caught:
        list(cluster.predict(job, structured(), micro_batches=2))
    assert "cannot be joined" in caught.value.details.message
    assert "micro_batches=1" in caught.value.details.advice
    assert list(cluster.predict(job, structured(), micro_batches=1))


def test_a_model_that_raises_is_told_where_the_outputs_are_read(cluster: pipesvc.Client) -> None:
    job = make_job(
        None, model=pipesvc.Call(jobs.faulty, kind="raise", at_call=5), strategy=pipesvc.Strategy(num_stages=2)
    )
    with pytest.raises(PipesvcError, match="boom") as caught:
        list(cluster.predict(job, inputs(80)))
    assert caught.value.details.where.step == 5
