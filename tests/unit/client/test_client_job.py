from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipesvc.client import checks, run_ids
from pipesvc.client.calls import Call
from pipesvc.client.job import (
    DataSource,
    Evaluation,
    Job,
    Optimizer,
    ScheduleFile,
    Scheduler,
    Strategy,
    StreamSource,
)
from pipesvc.client.sources import MAX_CAPACITY
from pipesvc.client.strategy import MAX_MICRO_BATCHES
from pipesvc.coordinator import validation
from pipesvc.errors import ErrorCode, PipesvcError


def build_model(width: int = 8) -> None: ...


def reader() -> Iterator[tuple[int, int]]:
    yield 1, 2


def weigh(labels: object) -> object:
    return labels


class Sgd:
    def step(self) -> None: ...

    @classmethod
    def make(cls) -> None: ...


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "model": build_model,
        "loss": weigh,
        "optimizer": Optimizer(Sgd, lr=0.1),
        "data": DataSource(reader, batch_size=8),
    }
    return Job(**(values | changes))


def _refusal(make: Callable[[], object]) -> str:
    with pytest.raises(PipesvcError) as caught:
        make()
    assert caught.value.code is ErrorCode.INVALID_JOB
    return str(caught.value)


def test_the_smallest_job_has_the_documented_defaults() -> None:
    made = job()
    assert (made.num_epochs, made.max_steps, made.seed, made.clip_norm) == (1, None, 0, None)
    assert job(max_steps=5).num_epochs == 0
    assert (made.strategy.micro_batches, made.strategy.schedule, made.strategy.pipeline) == (1, "1F1B", True)
    assert (made.data.capacity, made.data.double_buffer, made.data.yields) == (64, True, "sample")


def test_p09_batch_smaller_than_micro_batches_names_the_fix() -> None:
    text = _refusal(lambda: job(data=DataSource(reader, batch_size=2), strategy=Strategy(micro_batches=4)))
    assert "batch_size is 2 and micro_batches is 4" in text
    assert "Use micro_batches=2 at most, or a batch_size of 4 or more" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: job(model=lambda: None), "model is a lambda"),
        (lambda: job(model=functools.partial(build_model, 3)), "functools.partial"),
        (lambda: job(model=Sgd()), "instance of Sgd"),
        (lambda: job(loss=Sgd().step), "bound method"),
        (lambda: job(loss=Sgd), "loss is the class Sgd"),
        (lambda: job(optimizer=Sgd), "Optimizer(torch.optim.SGD"),
        (lambda: job(optimizer=Call(Sgd)), "optimizer is a Call"),
        (lambda: Optimizer(Sgd, groups=3), "groups is 3; it must be a dict of name patterns"),  # type: ignore[arg-type]
        (lambda: Optimizer(Sgd, groups=lambda name, each: {}), "groups is a lambda"),
        (lambda: Optimizer(Sgd, groups={"": {}}), "a pattern of groups is ''"),
        (lambda: Optimizer(Sgd, groups={"*.bias": 0.0}), "groups has '*.bias', whose value is 0.0"),  # type: ignore[dict-item]
        (lambda: Optimizer(Sgd, groups={"a": {"lr": math.nan}}), "groups['a']['lr'] is nan"),
        (lambda: Scheduler(Sgd, every="batch"), 'every is \'batch\'; it must be "step" or "epoch"'),
        (lambda: Scheduler(Sgd, rate=lambda epoch: 1), "the argument rate is a lambda, which has no name to import"),
        (lambda: Scheduler(Sgd, rates=[build_model]), "the argument rates[0] is a function; arguments travel as JSON"),
        (lambda: job(data=reader), "DataSource(reader, batch_size=8)"),
        (lambda: DataSource(reader), "batch_size is missing"),
        (lambda: DataSource(reader, yields="sample_list"), "batch_size is missing"),
        (lambda: DataSource([1, 2], batch_size=2), "source is an instance of list"),
        (lambda: DataSource(reader, batch_size=0), "batch_size is 0"),
        (lambda: DataSource(reader, batch_size=True), "batch_size is True"),
        (lambda: DataSource(reader, batch_size=2, yields="rows"), "yields is 'rows'"),
        (lambda: DataSource(reader, batch_size=2, timeout_s=math.inf), "timeout_s is inf"),
        (lambda: DataSource(reader, batch_size=2, capacity=0), "capacity is 0"),
        (lambda: StreamSource(reader, batch_size=2), "Call it: StreamSource(reader())"),
        (lambda: job(data=StreamSource(reader(), batch_size=2), epochs=2), "a streamed source is read once"),
        (lambda: job(data=DataSource(reader, batch_size=2, labels=False), weight=weigh), "nothing to weigh"),
        (lambda: job(epochs=0), "epochs is 0"),
        (lambda: job(max_steps=0), "max_steps is 0"),
        (lambda: job(seed=-1), "seed is -1"),
        (lambda: job(seed=2**63), "from 0 to 9223372036854775807"),
        (lambda: job(clip_norm=0), "clip_norm is 0"),
        (lambda: job(clip_norm=math.nan), "clip_norm is nan"),
        (
            lambda: job(accumulate=2**15, strategy=Strategy(micro_batches=4)),
            "A step has at most 65536 micro-batches",
        ),
        (lambda: job(clip_norm=1.0, clip_value=1.0), "clip_norm and clip_value are both given"),
        (lambda: job(worker_wait_s=0), "worker_wait_s is 0"),
        (lambda: job(include="data.txt"), "include=['data.txt']"),
        (lambda: Strategy(schedule="zigzag"), "naive, GPipe, 1F1B"),
        (lambda: Strategy(micro_batches=0), "micro_batches is 0"),
        (lambda: Strategy(num_stages=3, boundaries=(1,)), "Leave num_stages out"),
        (lambda: Strategy(pipeline=False, num_stages=3), "one stage, but num_stages is 3"),
        (lambda: Strategy(pipeline=False, boundaries=(1,)), "one stage, but boundaries is (1,)"),
        (lambda: Strategy(pipeline=False, boundaries="auto"), "one stage, but boundaries is 'auto'"),
        (lambda: Strategy(pipeline=False, schedule="ZBV"), "one stage, but schedule is 'ZBV'"),
        (lambda: Strategy(boundaries=(3, 1)), "must ascend"),
        (lambda: Strategy(boundaries=(3, 3)), "each cuts once"),
        (lambda: Strategy(boundaries=("a", "a")), "each cuts once"),
        (lambda: Strategy(boundaries=("a", 3)), "all of them by index, or all by name"),  # type: ignore[arg-type]
        (lambda: Strategy(boundaries="head"), "Write boundaries=('head',)"),
        (lambda: Strategy(boundaries=(0, 1)), "first stage has none"),
        (lambda: Strategy(placement={"gpu:0": ""}), "placement"),
        (lambda: Call(build_model, width=object()), "the argument width is a object"),
        (lambda: Call(build_model, width=math.nan), "JSON has no number"),
        (lambda: Call(build_model, sizes=[1, {"a": {2: 3}}]), "sizes[1]['a'] has the key 2"),
    ],
)
def test_contradictions_are_refused_at_birth(make: Callable[[], object], words: str) -> None:
    assert words in _refusal(make)


def test_a_nested_function_is_refused_with_the_way_out() -> None:
    def nested() -> None: ...

    text = _refusal(lambda: job(model=nested))
    assert "defined inside another function" in text
    assert "pipesvc.Call(function, name=value)" in text


def test_in_flight_is_refused_for_a_schedule_that_has_its_own() -> None:
    with pytest.raises(PipesvcError) as caught:
        Strategy(schedule="GPipe", micro_batches=4, in_flight=2)
    assert caught.value.code is ErrorCode.INVALID_PLAN


def test_a_file_for_two_stages_is_refused_with_the_pipeline_off(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n")
    assert Strategy(schedule=ScheduleFile(path), num_stages=2)
    text = _refusal(lambda: Strategy(schedule=ScheduleFile(path), pipeline=False))
    assert "is for 2 stages, and the strategy makes 1" in text


def test_p11_a_micro_batch_beyond_those_of_the_step_is_refused_with_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("0F0,0F1,0B0,0B1,0F2\n1F0,1B0,1F1,1B1\n")
    file = ScheduleFile(path)
    with pytest.raises(PipesvcError) as caught:
        Strategy(schedule=file, micro_batches=2)
    said = "row 1, column 5: 0F2 is of a micro-batch that is not among 2 micro-batches"
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    with pytest.raises(PipesvcError, match="the lists lack 0B2, 1F2, 1B2"):
        Strategy(schedule=file, micro_batches=3)


def test_a_method_that_cannot_be_read_is_refused_where_it_is_written() -> None:
    assert Strategy(boundaries="type:(Linear|ReLU):2|Block").boundaries
    for method, said in (("type:(", "no regular expression"), (f"type:Block:{'9' * 400}", "the weight of 'Block'")):
        with pytest.raises(PipesvcError, match=said):
            Strategy(boundaries=method)


def test_a_schedule_file_is_for_one_mini_batch(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("0F0,0B0\n")
    text = _refusal(lambda: job(accumulate=2, strategy=Strategy(schedule=ScheduleFile(path))))
    assert "a schedule file orders the micro-batches of one mini-batch" in text


def test_one_stage_may_be_said_twice() -> None:
    assert Strategy(pipeline=False, num_stages=1, micro_batches=4, schedule="GPipe").num_stages == 1


def test_schedule_names_ignore_case() -> None:
    assert Strategy(schedule="gpipe").schedule == "gpipe"


def test_jobs_and_calls_are_frozen_values() -> None:
    call = Call(build_model, width=4)
    assert call == Call(build_model, width=4)
    assert call != Call(build_model, width=5)
    assert call != Optimizer(build_model, width=4)
    assert hash(call) == hash(Call(build_model, width=4))
    assert repr(call) == "Call(build_model, width=4)"
    grouped = Optimizer(Sgd, groups={"*.bias": {"lr": 0.1}}, lr=0.2)
    assert grouped == Optimizer(Sgd, groups={"*.bias": {"lr": 0.1}}, lr=0.2)
    assert grouped != Optimizer(Sgd, lr=0.2)
    assert repr(grouped) == "Optimizer(Sgd, lr=0.2, groups={'*.bias': {'lr': 0.1}})"
    assert Call(build_model, width=build_model) != Call(build_model, width=reader)
    assert repr(Call(build_model, width=reader)) == "Call(build_model, width=reader)"
    assert Scheduler(Sgd, every="epoch") != Scheduler(Sgd)
    assert Scheduler(Sgd) == Scheduler(Sgd)
    assert repr(Scheduler(Sgd, gamma=2)) == "Scheduler(Sgd, gamma=2, every='step')"
    with pytest.raises(AttributeError, match="frozen"):
        call.function = reader
    with pytest.raises(AttributeError):
        job().seed = 3  # type: ignore[misc]


def test_arguments_are_sorted_json() -> None:
    assert Call(build_model, b=(0.9, 0.95), a=None).arguments_json == '{"a": null, "b": [0.9, 0.95]}'


def test_the_bounds_are_those_of_the_coordinator() -> None:
    assert run_ids._RUN_ID == validation._RUN_ID
    ours = (MAX_CAPACITY, MAX_MICRO_BATCHES, checks.MAX_WAIT_S)
    assert ours == (validation._MAX_CAPACITY, validation._MAX_MICRO_BATCHES, validation._MAX_WAIT_S)
    assert DataSource(reader, batch_size=8, capacity=MAX_CAPACITY).capacity == MAX_CAPACITY
    with pytest.raises(PipesvcError, match=r"from 1 to 65536\. It counts whole batches") as caught:
        DataSource(reader, batch_size=8, capacity=MAX_CAPACITY + 1)
    assert caught.value.code is ErrorCode.INVALID_JOB


SPLIT_TEXT = "0F0,0I0,0W0\n1F0,1B0\n"


@pytest.mark.parametrize("schedule", ["ZBH1", "zbv"])
def test_n06_compiled_modules_are_not_split(schedule: str) -> None:
    with pytest.raises(PipesvcError, match=f"{schedule} splits backwards into I and W, and compile=True") as caught:
        Strategy(schedule=schedule, compile=True)
    assert "Use 1F1B, GPipe or Interleaved1F1B" in str(caught.value)
    assert Strategy(schedule="auto", compile=True).compile


def test_n06_nor_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text(SPLIT_TEXT)
    with pytest.raises(PipesvcError, match="the schedule file splits backwards into I and W"):
        Strategy(schedule=ScheduleFile(path), compile=True)
    path.write_text(SPLIT_TEXT.replace("0I0,0W0", "0B0"))
    assert Strategy(schedule=ScheduleFile(path), compile=True).compile


def test_compiled_modules_are_recomputed_whole() -> None:
    with pytest.raises(PipesvcError, match="recompute names modules inside them"):
        Strategy(recompute=("blocks.*",), compile=True)
    assert Strategy(recompute=True, compile=True).recompute is True


def test_an_evaluation_has_labels_where_the_training_has_some() -> None:
    evaluation = Evaluation(data=DataSource(reader, batch_size=8, labels=False))
    with pytest.raises(PipesvcError, match="labels=True and the data of evaluation has labels=False"):
        job(evaluation=evaluation)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_stages": 3}, "model has 2 builders, one for each stage, but num_stages is 3"),
        ({"boundaries": (2,)}, r"but boundaries is \(2,\)"),
        ({"boundaries": "auto"}, "but boundaries is 'auto'"),
    ],
)
def test_builders_of_stages_say_how_many_there_are(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PipesvcError, match=said):
        job(model=[build_model, build_model], strategy=Strategy(**changes))


def test_a_strategy_may_say_the_same_as_the_builders() -> None:
    for changes in ({}, {"num_stages": 2}, {"boundaries": (1,)}, {"boundaries": ["1"]}):
        made = job(model=[build_model, build_model], strategy=Strategy(**changes))
        assert made.strategy.boundaries == (1,)
    assert job(model=[build_model, build_model], strategy=Strategy(pipeline=False)).strategy.boundaries == ()


@pytest.mark.parametrize("optimizer", [Optimizer(Sgd, groups={"*.bias": {"lr": 0.0}}), {"*": Optimizer(Sgd)}])
def test_builders_of_stages_know_no_names_of_each_other(optimizer: object) -> None:
    text = _refusal(lambda: job(model=[build_model, build_model], optimizer=optimizer))
    assert "the optimizer asks for the names of all parameters" in text
