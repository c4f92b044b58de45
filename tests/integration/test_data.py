"""Every way to give data trains the same rows to the same numbers, and ends without an end-of-data error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration import choosy, jobs


def make_job(data: Any, **changes: Any) -> pipesvc.Job:
    options: dict[str, Any] = {
        "model": pipesvc.Call(jobs.mlp, depth=1),
        "loss": jobs.cross_entropy,
        "optimizer": pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        "data": data,
        "strategy": pipesvc.Strategy(micro_batches=4, num_stages=2),
        "seed": 3,
    }
    return pipesvc.Job(**(options | changes))


def losses(cluster: pipesvc.Client, job: pipesvc.Job) -> list[float]:
    run = cluster.submit(job)
    run.wait()
    return run.losses()


@pytest.fixture(scope="module")
def by_samples(cluster: pipesvc.Client) -> list[float]:
    found = losses(cluster, make_job(pipesvc.DataSource(jobs.samples, batch_size=8)))
    assert len(found) == 10
    return found


@pytest.mark.parametrize(
    ("source", "yields"),
    [(jobs.sample_lists, "sample_list"), (jobs.whole_batches, "batch")],
)
def test_a13_lists_and_batches_train_as_samples_do(
    cluster: pipesvc.Client, by_samples: list[float], source: Callable[..., Any], yields: str
) -> None:
    batch_size = None if yields == "batch" else 8
    data = pipesvc.DataSource(source, yields=yields, batch_size=batch_size)
    assert losses(cluster, make_job(data)) == by_samples


def test_a14_double_buffering_changes_no_number(cluster: pipesvc.Client, by_samples: list[float]) -> None:
    data = pipesvc.DataSource(jobs.samples, batch_size=8, capacity=2, double_buffer=False)
    assert losses(cluster, make_job(data)) == by_samples


def reads_during_compute(run: pipesvc.Run) -> int:
    """How many batches were read while a stage computed an earlier step."""
    trace = run.trace()
    computes = [(e["step"], e["start_unix_ns"], e["end_unix_ns"]) for e in trace if e["action"] in ("F", "B")]
    reads = [(e["step"], e["start_unix_ns"], e["end_unix_ns"]) for e in trace if e["action"] == "read"]
    assert len(reads) == 10
    return sum(
        any(c_step < step and c_start < end and start < c_end for c_step, c_start, c_end in computes)
        for step, start, end in reads
    )


@pytest.mark.parametrize(("double_buffer", "overlaps"), [(True, True), (False, False)])
def test_a14_the_trace_shows_reading_beside_computing(
    cluster: pipesvc.Client, double_buffer: bool, overlaps: bool
) -> None:
    source = pipesvc.Call(jobs.slow_samples, num_rows=80, pause_s=0.005)
    data = pipesvc.DataSource(source, batch_size=8, capacity=2, double_buffer=double_buffer)
    run = cluster.submit(make_job(data, model=pipesvc.Call(jobs.sleepy, num_layers=2, pause_s=0.005)))
    run.wait()
    assert (reads_during_compute(run) > 0) == overlaps


def test_a14_no_more_than_capacity_batches_lie_between_source_and_training(cluster: pipesvc.Client) -> None:
    """The source is as fast as can be and the stages are slow, so the queue is always full."""
    capacity = 3
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=160), batch_size=8, capacity=capacity)
    run = cluster.submit(make_job(data, model=pipesvc.Call(jobs.sleepy, num_layers=2, pause_s=0.01)))
    run.wait()
    trace = run.trace()
    read = {e["step"]: e["start_unix_ns"] for e in trace if e["action"] == "read"}
    sent = {e["step"]: e["start_unix_ns"] for e in trace if e["action"] == "send"}
    assert len(read) == len(sent) == 20
    ahead = [step - sum(moment <= begun for moment in sent.values()) for step, begun in read.items()]
    assert max(ahead) == capacity


def test_a15_a_hundred_samples_in_batches_of_two_are_fifty_steps(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=100), batch_size=2)
    assert len(losses(cluster, make_job(data, strategy=pipesvc.Strategy(micro_batches=2, num_stages=2)))) == 50


def test_drop_last_leaves_the_short_batch_out(cluster: pipesvc.Client, by_samples: list[float]) -> None:
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=83), batch_size=8, drop_last=True)
    assert losses(cluster, make_job(data)) == by_samples


def test_max_steps_ends_the_run_early(cluster: pipesvc.Client, by_samples: list[float]) -> None:
    assert losses(cluster, make_job(pipesvc.DataSource(jobs.samples, batch_size=8), max_steps=4)) == by_samples[:4]


def test_n18_more_steps_than_one_epoch_has_are_given_by_more_epochs(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(jobs.samples, batch_size=8)
    assert len(losses(cluster, make_job(data, epochs=2, max_steps=12))) == 12


def test_a13_a_stream_from_the_client_trains_the_same(cluster: pipesvc.Client, by_samples: list[float]) -> None:
    assert losses(cluster, make_job(pipesvc.StreamSource(list(jobs.samples()), batch_size=8))) == by_samples


def test_a16_an_exception_in_the_clients_own_stream_is_raised_there(cluster: pipesvc.Client) -> None:
    def torn() -> Iterator[tuple[Tensor, Tensor]]:
        yield from jobs.samples(20)
        raise KeyError("row 20 is torn")

    run = cluster.submit(make_job(pipesvc.StreamSource(torn(), batch_size=8)))
    with pytest.raises(PipesvcError, match="row 20 is torn") as caught:
        run.wait()
    assert caught.value.code == ErrorCode.DATA_SOURCE_FAILED


def test_a13_named_inputs_and_a_pair_between_stages(cluster: pipesvc.Client) -> None:
    run = cluster.submit(make_job(pipesvc.DataSource(jobs.named_samples, batch_size=8), model=jobs.towers))
    run.wait()
    links = {link["link"]: link for link in run.links()}
    assert links["0>1/activation"]["num_frames"] == 2 * links["feeder>1/label"]["num_frames"]
    model = jobs.towers()
    state = run.state_dict()
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state, strict=True)


@pytest.mark.parametrize(
    ("model", "loss"),
    [(pipesvc.Call(jobs.mlp, depth=1), jobs.mean_square), (jobs.self_scoring, None)],
)
def test_a13_jobs_without_labels(cluster: pipesvc.Client, model: Any, loss: Any) -> None:
    data = pipesvc.DataSource(jobs.inputs_alone, batch_size=8, labels=False)
    run = cluster.submit(make_job(data, model=model, loss=loss))
    run.wait()
    found = run.losses()
    assert len(found) == 10
    assert found[-1] < found[0]
    assert not [link["link"] for link in run.links() if "label" in link["link"]]


def test_a_list_of_modules_is_a_model(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(jobs.samples, batch_size=8)
    as_list = losses(cluster, make_job(data, model=jobs.list_of_layers))
    assert as_list == losses(cluster, make_job(data, model=pipesvc.Call(jobs.mlp, depth=2)))


def test_p09_a_batch_smaller_than_the_micro_batches_is_refused(cluster: pipesvc.Client) -> None:
    with pytest.raises(PipesvcError, match="micro_batches") as caught:
        make_job(pipesvc.DataSource(jobs.samples, batch_size=2))
    assert caught.value.code == ErrorCode.INVALID_JOB
    whole = pipesvc.DataSource(pipesvc.Call(jobs.whole_batches, batch_size=2), yields="batch")
    with pytest.raises(PipesvcError, match="micro_batches"):
        cluster.submit(make_job(whole)).wait()


@pytest.mark.parametrize(
    ("source", "yields", "code", "stage", "texts"),
    [
        (jobs.wide_samples, "sample", ErrorCode.STAGE_FAILED, 0, ["layer '0' (Linear) on float32 (2, 9)", "shapes"]),
        (jobs.named_samples, "sample", ErrorCode.STAGE_FAILED, 0, ["{'left': float32 (2, 8)", "dict"]),
        (jobs.float_labels, "sample", ErrorCode.STAGE_FAILED, 1, ["the loss function on float32 (2, 4), float32 (2,)"]),
        (pipesvc.Call(jobs.whole_batches, batch_size=3), "batch", ErrorCode.INVALID_JOB, None, ["3 rows", "4 micro"]),
    ],
)
def test_a13_data_that_does_not_fit_the_model_is_refused_at_submit(
    cluster: pipesvc.Client, source: Any, yields: str, code: ErrorCode, stage: int | None, texts: list[str]
) -> None:
    data = pipesvc.DataSource(source, batch_size=None if yields == "batch" else 8, yields=yields)
    with pytest.raises(PipesvcError) as caught:
        cluster.submit(make_job(data))
    assert caught.value.code == code
    assert caught.value.details.where.stage == stage
    assert all(text in str(caught.value) for text in texts)


def test_a13_the_check_does_not_wait_for_the_runs_turn(cluster: pipesvc.Client) -> None:
    slow = pipesvc.Call(jobs.sleepy, num_layers=2, pause_s=0.2)
    ahead = cluster.submit(make_job(pipesvc.DataSource(jobs.samples, batch_size=8), model=slow))
    with pytest.raises(PipesvcError, match="tried before the start"):
        cluster.submit(make_job(pipesvc.DataSource(jobs.wide_samples, batch_size=8)))
    assert ahead.state in ("BUILDING", "RUNNING")
    ahead.cancel()


def test_a13_what_cannot_be_tried_is_named_by_the_first_step(cluster: pipesvc.Client) -> None:
    """A stream is not here yet when its run is inspected."""
    run = cluster.submit(make_job(pipesvc.StreamSource(list(jobs.wide_samples()), batch_size=8)))
    with pytest.raises(PipesvcError, match="mat1 and mat2") as caught:
        run.wait()
    where = caught.value.details.where
    assert (caught.value.code, where.step, where.stage) == (ErrorCode.STAGE_FAILED, 1, 0)


def test_a13_code_that_is_bound_to_the_main_thread_is_not_refused(cluster: pipesvc.Client) -> None:
    job = make_job(pipesvc.DataSource(jobs.samples, batch_size=8), model=choosy.bound_to_its_thread)
    assert len(losses(cluster, job)) == 10


@pytest.mark.parametrize("lacks", ["variable", "instruction"])
@pytest.mark.parametrize("worker", ["worker-0", "worker-3"])
def test_a13_what_works_on_the_worker_of_its_stage_is_not_refused(
    cluster: pipesvc.Client, worker: str, lacks: str
) -> None:
    """Whoever inspects first, one of the two models is inspected where it cannot work."""
    places = {"stage:0": "worker-1", "stage:1": worker}
    job = make_job(
        pipesvc.DataSource(jobs.samples, batch_size=8),
        model=pipesvc.Call(choosy.only_on, worker=worker, lacks=lacks),
        strategy=pipesvc.Strategy(micro_batches=4, boundaries=(1,), placement=places),
    )
    assert len(losses(cluster, job)) == 10


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (pipesvc.Call(jobs.source_that_raises, num_rows=3), "row 17 is torn"),
        (jobs.ragged_samples, "do not make a batch"),
        (pipesvc.Call(jobs.samples, num_rows="many"), "TypeError"),
    ],
)
def test_a16_a_source_that_fails_at_once_is_refused_at_submit(cluster: pipesvc.Client, source: Any, text: str) -> None:
    with pytest.raises(PipesvcError, match=text) as caught:
        cluster.submit(make_job(pipesvc.DataSource(source, batch_size=8)))
    assert caught.value.code == ErrorCode.DATA_SOURCE_FAILED


def test_a13_a_source_that_ends_the_process_is_named(cluster: pipesvc.Client) -> None:
    """By the run: a trial that kills its process may do so for a reason of that worker's own."""
    run = cluster.submit(make_job(pipesvc.DataSource(jobs.exits_in_the_source, batch_size=8)))
    with pytest.raises(PipesvcError, match="feeder ended with exit code 3") as caught:
        run.wait()
    assert caught.value.code == ErrorCode.CHILD_DIED
