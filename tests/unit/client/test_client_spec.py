from __future__ import annotations

import dataclasses
import io
import zipfile
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from pipesvc.client.calls import Call
from pipesvc.client.job import (
    Codec,
    DataSource,
    Evaluation,
    GradScaler,
    Job,
    Optimizer,
    ScheduleFile,
    Scheduler,
    Strategy,
    StreamSource,
)
from pipesvc.client.predicting import prediction_job
from pipesvc.client.spec import make_submission
from pipesvc.rpc.v1 import job_pb2
from tests.unit.client.test_client_resume import checkpoint

_USER = """
import torch
from torch import nn

def build_model(width=8):
    return nn.Sequential(nn.Linear(width, width))

def reader():
    yield torch.zeros(8), torch.zeros(8)

def weigh(labels):
    return labels

def held_out():
    yield torch.zeros(8), torch.zeros(8)

def score(outputs, labels, power=1):
    return 1.0

def halved(epoch):
    return 0.5**epoch

def rule(name, parameter, decay=0.1):
    return {"weight_decay": decay}
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (tmp_path / "spec_user_module.py").write_text(_USER)
    monkeypatch.syspath_prepend(tmp_path)
    import spec_user_module  # type: ignore[import-not-found]

    return spec_user_module


def _full_job(user: object) -> Job:
    return Job(
        model=user.build_model,  # type: ignore[attr-defined]
        loss=functional.cross_entropy,
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=DataSource(user.reader, batch_size=8, capacity=3, double_buffer=False, drop_last=True, timeout_s=7),  # type: ignore[attr-defined]
        strategy=Strategy(
            micro_batches=4,
            schedule="1f1b",
            boundaries=(1, 3),
            placement={"stage:0": "w"},
            allow_cpu_for_gpu=True,
            in_flight=3,
            recompute=True,
            compile=True,
            same_host=False,
            codec=Codec(activations="int8", links={"0>1": Codec(gradients="bf16")}),
        ),
        epochs=2,
        max_steps=9,
        seed=5,
        clip_norm=0.5,
        check_finite=True,
        batch_norm="deferred",
        weight=user.weigh,  # type: ignore[attr-defined]
        init=Path(user.__file__),  # type: ignore[attr-defined]
        evaluation=Evaluation(
            data=DataSource(user.held_out, batch_size=4, drop_last=True),  # type: ignore[attr-defined]
            every_steps=3,
            micro_batches=2,
            metrics={"first": Call(user.score, power=2), "second": user.score},  # type: ignore[attr-defined]
        ),
        name="full",
        accumulate=2,
        autocast="float16",
        grad_scaler=GradScaler(init_scale=8, growth_factor=3, backoff_factor=0.25, growth_interval=5),
        scheduler=Scheduler(torch.optim.lr_scheduler.LambdaLR, every="epoch", lr_lambda=user.halved),  # type: ignore[attr-defined]
        worker_wait_s=1,
        build_timeout_s=2,
        step_timeout_s=3,
    )


def test_every_field_of_the_message_is_filled(user: object) -> None:
    submission = make_submission(_full_job(user))
    spec = submission.spec
    not_for_this_job = {
        "training",
        "keys_init_by_name",
        "stage_models",
        "recompute_patterns",
        "is_prediction",
        "num_stages",
        "is_streamed",
        "double_buffer",
        "boundary_names",
        "schedule_text",
        "optimizers",
        "clip_value",
    }
    for message in (spec, spec.data, spec.strategy, spec.evaluation, *spec.evaluation.metrics):
        for field in message.DESCRIPTOR.fields:
            if field.name not in not_for_this_job:
                assert getattr(message, field.name), f"{message.DESCRIPTOR.name}.{field.name} is empty"
    assert spec.model.target == "spec_user_module:build_model"
    assert spec.data.source.target == "spec_user_module:reader"
    assert spec.optimizer.target == "torch.optim:SGD"
    assert spec.optimizer.arguments_json == '{"lr": 0.1}'
    assert list(spec.strategy.boundaries) == [1, 3]
    named = make_submission(
        dataclasses.replace(_full_job(user), strategy=Strategy(boundaries=("head",), micro_batches=4))
    ).spec
    assert list(named.strategy.boundary_names) == ["head"]
    assert not named.strategy.recomputes_all
    patterns = Strategy(recompute=("blocks.*", "head"), micro_batches=4)
    assert list(
        make_submission(dataclasses.replace(_full_job(user), strategy=patterns)).spec.strategy.recompute_patterns
    ) == ["blocks.*", "head"]
    assert not named.strategy.boundaries
    assert dict(spec.strategy.placement) == {"stage:0": "w"}
    assert zipfile.ZipFile(io.BytesIO(submission.bundle.data)).namelist() == ["spec_user_module.py"]
    assert spec.autocast == job_pb2.AUTOCAST_FLOAT16
    assert spec.grad_scaler == job_pb2.GradScalerSpec(
        init_scale=8, growth_factor=3, backoff_factor=0.25, growth_interval=5
    )
    assert spec.scheduler.make.target == "torch.optim.lr_scheduler:LambdaLR"
    assert dict(spec.scheduler.make.functions) == {"lr_lambda": "spec_user_module:halved"}
    assert spec.scheduler.every == job_pb2.SCHEDULER_PERIOD_EPOCH
    assert spec.bundle_sha256 == submission.bundle.sha256


def test_every_field_of_the_job_changes_the_message(user: object) -> None:
    """A field that is added to Job and forgotten in the message is found here."""
    full = _full_job(user)
    base = make_submission(full)
    changes: dict[str, object] = {
        "model": user.weigh,  # type: ignore[attr-defined]
        "loss": None,
        "optimizer": Optimizer(torch.optim.AdamW),
        "data": DataSource(user.reader, batch_size=9),  # type: ignore[attr-defined]
        "strategy": Strategy(micro_batches=2),
        "epochs": 1,
        "max_steps": None,
        "seed": 6,
        "clip_norm": None,
        "clip_value": 0.5,
        "check_finite": False,
        "batch_norm": "per_micro_batch",
        "weight": None,
        "evaluation": None,
        "init": None,
        "resume": checkpoint(Path(str(user.__file__)).parent / "checkpoint"),  # type: ignore[attr-defined]
        "autocast": "bfloat16",
        "grad_scaler": True,
        "accumulate": 3,
        "scheduler": None,
        "name": None,
        "include": ("spec_user_module.py", "*.txt"),
        "worker_wait_s": 11,
        "build_timeout_s": 12,
        "step_timeout_s": 13,
    }
    assert changes.keys() == {field.name for field in dataclasses.fields(Job)}
    (Path(str(user.__file__)).parent / "more.txt").write_text("x")  # type: ignore[attr-defined]
    for name, value in changes.items():
        others = {"clip_value": {"clip_norm": None}, "resume": {"init": None}}.get(name, {})
        changed = make_submission(dataclasses.replace(full, **others, **{name: value}))  # type: ignore[arg-type]
        assert name != "clip_value" or changed.spec.clip_value == 0.5
        assert changed.spec != base.spec, name


def test_defaults_of_a_streamed_job(user: object) -> None:
    job = Job(
        model=user.build_model,  # type: ignore[attr-defined]
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=StreamSource([1, 2, 3], yields="batch", labels=False),
    )
    spec = make_submission(job).spec
    assert spec.data.is_streamed
    assert not spec.data.HasField("source")
    assert not spec.HasField("loss")
    assert spec.data.yields == job_pb2.YIELDS_BATCH
    assert (spec.data.batch_size, spec.data.has_labels, spec.max_steps, spec.clip_norm) == (0, False, 0, 0.0)
    assert spec.name == "build_model"


def test_a_job_of_installed_functions_needs_no_bundle() -> None:
    job = Job(
        model=torch.nn.Identity,
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=StreamSource([1], yields="batch"),
    )
    submission = make_submission(job)
    assert submission.bundle.data == b""
    assert submission.spec.bundle_sha256 == ""
    assert submission.spec.model.target == "torch.nn:Identity"


def test_a_schedule_file_travels_as_text(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("0F0,0B0\n")
    job = Job(
        model=torch.nn.Identity,
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=StreamSource([1], yields="batch"),
        strategy=Strategy(schedule=ScheduleFile(path)),
    )
    strategy = make_submission(job).spec.strategy
    assert (strategy.schedule, strategy.schedule_text) == ("file", "0F0,0B0\n")


def test_the_functions_of_an_evaluation_travel_by_name(user: object) -> None:
    evaluation = make_submission(_full_job(user)).spec.evaluation
    assert evaluation.data.source.target == "spec_user_module:held_out"
    assert [(each.name, each.call.target, each.call.arguments_json) for each in evaluation.metrics] == [
        ("first", "spec_user_module:score", '{"power": 2}'),
        ("second", "spec_user_module:score", "{}"),
    ]
    base = _full_job(user)
    assert base.evaluation is not None
    as_in_training = dataclasses.replace(base, evaluation=Evaluation(data=base.evaluation.data))
    spec = make_submission(as_in_training).spec
    assert (spec.evaluation.every_steps, spec.evaluation.micro_batches) == (0, 4)


def test_parameter_groups_travel_as_patterns_or_as_a_function(user: object) -> None:
    patterns = Optimizer(torch.optim.SGD, lr=0.1, groups={"*.bias": {"weight_decay": 0.0}, "0.*": {"betas": (0, 1)}})
    rule = user.rule  # type: ignore[attr-defined]
    specs = {}
    for name, optimizer in {
        "patterns": patterns,
        "rule": Optimizer(torch.optim.SGD, lr=0.1, groups=rule),
        "rule with arguments": Optimizer(torch.optim.SGD, lr=0.1, groups=Call(rule, decay=0.2)),
    }.items():
        spec = make_submission(dataclasses.replace(_full_job(user), optimizer=optimizer)).spec
        assert not spec.HasField("optimizer")
        [specs[name]] = spec.optimizers
        assert (specs[name].make.target, specs[name].make.arguments_json) == ("torch.optim:SGD", '{"lr": 0.1}')
        assert specs[name].HasField("group_rule") == name.startswith("rule")
    assert [(each.pattern, each.options_json) for each in specs["patterns"].groups] == [
        ("*.bias", '{"weight_decay": 0.0}'),
        ("0.*", '{"betas": [0, 1]}'),
    ]
    assert specs["rule"].group_rule.target == "spec_user_module:rule"
    assert specs["rule with arguments"].group_rule.arguments_json == '{"decay": 0.2}'


def test_several_optimizers_travel_with_their_patterns(user: object) -> None:
    rule = user.rule  # type: ignore[attr-defined]
    optimizers = {
        "0.*": Optimizer(torch.optim.SparseAdam, lr=0.1),
        "*": Optimizer(torch.optim.SGD, lr=0.2, groups=rule),
    }
    spec = make_submission(dataclasses.replace(_full_job(user), optimizer=optimizers)).spec
    assert not spec.HasField("optimizer")
    assert [(each.pattern, each.make.target, each.group_rule.target) for each in spec.optimizers] == [
        ("0.*", "torch.optim:SparseAdam", ""),
        ("*", "torch.optim:SGD", "spec_user_module:rule"),
    ]


def test_a_prediction_has_nothing_that_updates(user: object) -> None:
    trained = dataclasses.replace(_full_job(user), clip_norm=None, clip_value=0.5)
    job = prediction_job(trained, [torch.zeros(2, 8)], None, None)
    spec = make_submission(job, is_prediction=True).spec
    for name in ("optimizer", "loss", "weight", "scheduler", "grad_scaler", "evaluation"):
        assert not spec.HasField(name), name
    assert (len(spec.optimizers), spec.accumulate, spec.clip_norm, spec.clip_value) == (0, 1, 0.0, 0.0)
    assert spec.autocast == make_submission(trained).spec.autocast != job_pb2.AUTOCAST_UNSPECIFIED
