"""Whatever Python has may stand in a field; what does not belong there is refused in one line, at birth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pipesvc.client import checks
from pipesvc.client.calls import Call
from pipesvc.client.job import (
    Codec,
    DataSource,
    Evaluation,
    GradScaler,
    Job,
    Optimizer,
    ScheduleFile,
    Strategy,
    StreamSource,
)
from pipesvc.client.local import MAX_THREADS, LocalCluster
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.worker import settings

HUGE = 10**5000  # more digits than Python writes


def build() -> None: ...


def reader() -> Iterator[int]:
    yield 1


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def data(**changes: Any) -> DataSource:
    return DataSource(reader, **({"batch_size": 8} | changes))


def stream(**changes: Any) -> StreamSource:
    return StreamSource([1], **({"batch_size": 8} | changes))


def job(**changes: Any) -> Job:
    options: dict[str, Any] = {"model": build, "optimizer": Optimizer(torch.optim.SGD), "data": data()}
    return Job(**(options | changes))


def evaluation(**changes: Any) -> Evaluation:
    return Evaluation(**({"data": data()} | changes))


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(PipesvcError) as caught:
        make()
    assert caught.value.code is ErrorCode.INVALID_JOB
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 400
    return text


# What is no value of a field, by what belongs there.
NO_FLAG: tuple[object, ...] = ("no", "False", 0, 1, None, np.True_, [])
NO_COUNT = ("3", 0, -1, 2.0, True, 2**70, HUGE, np.int64(8), [3], Rude())
NO_NUMBER = ("1", 0, -1.0, True, float("nan"), 10**400, HUGE, [1])
NO_NAME = (3, "", "\ud800", "a\nb\x1b[31m\x00", "x" * 5000, b"x", Rude())
NO_BOUNDARIES = (3, None, {1, 2}, {1: 2}, b"\1\2", bytearray(b"\1"), (each for each in (1,)), np.array([1, 2]), Rude())
NO_BOUNDARY = ([1], None, True, 2**70, HUGE, 1.0, b"a", "\ud800", "")
NO_PLACEMENT = ("gpu", ["gpu"], None, 3, {3: "w"}, {"gpu:0": None}, {"gpu:0": ""}, {"gpu:0": "\ud800"}, {"\n": "w"})
NO_SCHEDULE = (None, 3, HUGE, ["GPipe"], b"GPipe", "x" * 5000, ScheduleFile, Rude())

Make = Callable[..., object]
FIELDS: list[tuple[Make, str, Sequence[object]]] = [
    *((make, name, NO_FLAG) for make in (data, stream) for name in ("drop_last", "double_buffer", "labels")),
    *((make, "batch_size", NO_COUNT) for make in (data, stream)),
    (data, "capacity", NO_COUNT),
    (data, "timeout_s", (*NO_NUMBER, 1e300)),
    (data, "yields", (None, 3, HUGE, np.array(["sample", "batch"]), "SAMPLE")),
    *((Strategy, name, NO_FLAG) for name in ("pipeline", "allow_cpu_for_gpu", "same_host")),
    *((Strategy, name, NO_COUNT) for name in ("micro_batches", "num_stages", "in_flight")),
    (Strategy, "boundaries", (*NO_BOUNDARIES, *((each,) for each in NO_BOUNDARY))),
    (Strategy, "placement", NO_PLACEMENT),
    (Strategy, "recompute", (3, None, {"a"}, "a", b"a", np.True_, [None], *([each] for each in NO_NAME))),
    (Strategy, "compile", NO_FLAG),
    (Strategy, "codec", (None, "int8", {"activations": "int8"}, True, Codec, Rude())),
    *((Codec, name, (None, 8, "INT8", ["int8"], np.array(["int8"]), Rude())) for name in ("activations", "gradients")),
    (Codec, "links", (None, "0>1", ["0>1"], {"1>0": Codec()}, {3: Codec()}, {"0>1": "int8"}, {"0-1": Codec()})),
    (Codec, "links", ({"00>1": Codec()}, {"0>1\n": Codec()}, {"0>1": Codec(links={"0>1": Codec()})})),
    (Strategy, "schedule", NO_SCHEDULE),
    (job, "check_finite", NO_FLAG),
    (job, "batch_norm", (None, True, 3, HUGE, "", "Deferred", ["deferred"], Rude())),
    *((job, name, NO_COUNT) for name in ("epochs", "max_steps", "accumulate")),
    (job, "seed", ("3", -1, True, 2**63, HUGE)),
    *((job, name, NO_NUMBER) for name in ("clip_norm", "clip_value")),
    *((job, name, (*NO_NUMBER, 1e300)) for name in ("worker_wait_s", "build_timeout_s", "step_timeout_s")),
    (job, "scheduler", ("StepLR", 3, Optimizer(torch.optim.SGD), torch.optim.lr_scheduler.StepLR)),
    (job, "autocast", ("half", "float32", 16, torch.float16, [])),
    (job, "grad_scaler", ("True", 1, None, 1024.0, GradScaler)),
    (GradScaler, "init_scale", (*NO_NUMBER, 1e39)),
    (GradScaler, "growth_factor", (*NO_NUMBER, 1, 0.5)),
    (GradScaler, "backoff_factor", (*NO_NUMBER, 1, 2)),
    (GradScaler, "growth_interval", NO_COUNT),
    (job, "name", NO_NAME),
    (job, "include", (3, None, {"a"}, "a", b"a", *([each] for each in NO_NAME if each != "x" * 5000), ["x" * 5000])),
    (job, "strategy", (None, "1F1B", {}, Strategy)),
    (job, "data", (None, [1], DataSource)),
    (job, "init", (3, b"x", "no.safetensors", "x" * 5000, "a\0b", [1], Rude())),
    (job, "resume", (3, b"x", "no such folder", "x" * 5000, "a\0b", [1], Rude())),
    (job, "evaluation", (3, "epoch", data(), Evaluation)),
    (evaluation, "data", (None, [1], DataSource, stream())),
    (evaluation, "every", (None, 3, "step", np.array(["epoch", "a"]), Rude())),
    *((evaluation, name, NO_COUNT) for name in ("every_steps", "micro_batches")),
    (evaluation, "metrics", (None, [1], "a", build, {"": build}, {3: build}, {"a": 3}, {"a": int}, {"a\n": build})),
    (job, "model", ([], [build], (build,), [build, 3], [build, "x"], {build, build}, [[build, build]])),
    *((job, name, ("x", 3, Rude())) for name in ("model", "loss", "weight", "optimizer")),
    (job, "optimizer", ({}, {"": Optimizer(torch.optim.SGD)}, {"*": torch.optim.SGD}, {3: Optimizer(torch.optim.SGD)})),
    (LocalCluster, "num_workers", (*NO_COUNT, 10_000)),
    (LocalCluster, "num_threads", ("2", -1, True, 2**70)),
    (LocalCluster, "devices", (3, "cpu", {"cpu", "gpu"}, ["cpu"], ["cpu", 3], ["cpu", "\0"])),
    (LocalCluster, "state_dir", (3, b"x", "\0")),
]


@pytest.mark.parametrize(
    ("make", "name", "values"), FIELDS, ids=[f"{make.__name__}-{name}" for make, name, _ in FIELDS]
)
def test_what_does_not_belong_in_a_field_is_refused_by_its_name(
    make: Make, name: str, values: Sequence[object]
) -> None:
    singular = {"boundaries": "a boundary", "devices": "a device"}.get(name, name)
    for value in values:
        text = refusal(lambda value=value: make(**{name: value}))  # type: ignore[misc]
        assert name in text or singular in text


def test_every_field_of_a_job_is_tried() -> None:
    """A field that is added without a check is found here."""
    tried = {name for _, name, _ in FIELDS}
    for kind in (Job, Strategy, DataSource, Evaluation, GradScaler, Codec):
        assert {field.name for field in dataclasses.fields(kind)} - {"source"} <= tried


def test_a_schedule_file_is_read_from_a_path_only() -> None:
    for value in (None, 3, b"x", "\ud800", "a\0b", ["x"]):
        assert "path" in refusal(lambda value=value: ScheduleFile(value))  # type: ignore[misc]


def test_arguments_that_json_does_not_bring_back_are_refused() -> None:
    loop: list[object] = []
    loop.append({"again": loop})
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    assert "the argument x contains itself, or is nested more than 100 deep" in refusal(lambda: Call(build, x=loop))
    assert "the argument x contains itself" in refusal(lambda: Call(build, x=deep))
    assert "the argument n is a whole number of more than 4300 digits" in refusal(lambda: Call(build, n=-HUGE))
    assert "the key a value of int" in refusal(lambda: Call(build, n={HUGE: 1}))
    longest = 10**4300 - 1
    assert Call(build, n=longest).arguments_json == f'{{"n": {longest}}}'


def test_an_optimizer_that_was_made_here_is_named_by_its_class() -> None:
    made = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    text = refusal(lambda: job(optimizer=made))
    assert "optimizer is an instance of SGD" in text
    assert "Write optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1)" in text


def test_what_belongs_there_is_taken() -> None:
    strategy = Strategy(boundaries=range(1, 3), placement={"gpu:0": "w/cuda:0"}, in_flight=2, micro_batches=4)
    made = job(strategy=strategy, name="Zürich, 2. Versuch", include=["a/*.txt"], max_steps=2**62, clip_norm=1)
    assert made.strategy.boundaries == range(1, 3)


def test_a_value_is_shown_in_a_few_words_whatever_it_is() -> None:
    assert checks.shown("a\nb") == r"'a\nb'"
    assert checks.shown("x" * 5000) == f"'{'x' * 79}..."
    assert [checks.shown(value) for value in (HUGE, Rude())] == ["a value of int", "a value of Rude"]


def test_threads_have_the_bound_of_the_worker() -> None:
    assert settings._MAX_THREADS == MAX_THREADS
