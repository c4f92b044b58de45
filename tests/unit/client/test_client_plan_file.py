"""The editable plan: what is written is read back, and every fault of an edit is named by its field."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import pipesvc
from pipesvc.client.job import ScheduleFile, Strategy
from pipesvc.client.plan_file import _TYPES, plan_file_text, read_plan
from pipesvc.core.plan_report import PlanReport
from pipesvc.errors import ErrorCode, PipesvcError

STRATEGY = Strategy(
    micro_batches=8,
    boundaries=("block.1", "head"),
    placement={"stage:0": "a/cpu", "stage:1": "b/cuda:0", "stage:2": "a/cpu"},
    in_flight=5,
)
REPORT = PlanReport(
    stages=(), places=(), schedule="1F1B", micro_batches=8, in_flight=5, step_s=0.5, bubble=0.25, reasons=("fast",)
)


def _document(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(plan_file_text(STRATEGY, REPORT))
    document["strategy"] |= changes
    return document


def _read(tmp_path: Path, document: object) -> Strategy:
    path = tmp_path / "plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_plan(path)


def _refusal(tmp_path: Path, document: object) -> str:
    with pytest.raises(PipesvcError) as caught:
        _read(tmp_path, document)
    assert caught.value.code in (ErrorCode.INVALID_PLAN, ErrorCode.INVALID_JOB)
    text = str(caught.value)
    assert f"the plan file {tmp_path / 'plan.json'}" in text
    return text


def test_a03_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert _read(tmp_path, plan_file_text(STRATEGY, REPORT)) == STRATEGY
    assert pipesvc.read_plan is read_plan


@pytest.mark.parametrize("recompute", [True, ("blocks.*", "head")])
def test_how_modules_are_run_is_read_back(tmp_path: Path, recompute: bool | tuple[str, ...]) -> None:
    strategy = Strategy(micro_batches=8, recompute=recompute, compile=recompute is True)
    assert _read(tmp_path, plan_file_text(strategy, REPORT)) == strategy


def test_codecs_are_read_back(tmp_path: Path) -> None:
    codec = pipesvc.Codec(activations="int8", gradients="bf16", links={"0>1": pipesvc.Codec(gradients="fp16")})
    strategy = Strategy(micro_batches=8, codec=codec)
    assert _read(tmp_path, plan_file_text(strategy, REPORT)) == strategy


def test_a_file_of_before_there_was_recompute_is_read(tmp_path: Path) -> None:
    document = _document()
    del document["strategy"]["recompute"], document["strategy"]["compile"], document["strategy"]["codec"]
    assert _read(tmp_path, document) == STRATEGY


def test_every_field_of_a_strategy_is_in_the_file() -> None:
    assert {field.name for field in fields(Strategy)} == set(_TYPES)


def test_estimates_stand_in_the_file_and_are_not_read(tmp_path: Path) -> None:
    document = _document()
    assert document["estimated"]["step_s"] == 0.5
    assert "not read back" in document["about"]
    document["estimated"] = "nonsense"
    assert _read(tmp_path, document) == STRATEGY
    del document["estimated"], document["about"]
    assert _read(tmp_path, document) == STRATEGY


def test_a03_an_edit_is_what_is_read(tmp_path: Path) -> None:
    edited = _read(tmp_path, _document(boundaries=[3], in_flight=None, placement={}, schedule="gpipe"))
    assert edited == Strategy(micro_batches=8, boundaries=(3,), schedule="gpipe")


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"micro_batches": "8"}, ["strategy.micro_batches is '8'; it must be a whole number"]),
        ({"micro_batches": True}, ["strategy.micro_batches is True"]),
        ({"boundaries": "auto"}, ["strategy.boundaries is 'auto'; it must be a list"]),
        ({"boundaries": [1.5]}, ["strategy.boundaries is [1.5]"]),
        ({"recompute": "blocks.*"}, ["strategy.recompute is 'blocks.*'; it must be true, false or a list of patterns"]),
        ({"compile": 1}, ["strategy.compile is 1"]),
        ({"codec": "int8"}, ["strategy.codec is 'int8'; it must be an object"]),
        ({"codec": {"activation": "int8"}}, ["a field of codec is 'activation'; it must be one of activations"]),
        ({"codec": {"activations": "int4"}}, ["activations is 'int4'; it must be one of none, bf16, fp16, int8"]),
        ({"codec": {"links": {"1>0": {}}}}, ["a pair of stages in links is '1>0'"]),
        ({"placement": []}, ["strategy.placement is []"]),
        ({"in_fligth": 3}, ["strategy.in_fligth is not a field", "in_flight"]),
        ({"micro_batches": None, "schedule": 1}, ["strategy.micro_batches is None", "strategy.schedule is 1"]),
        ({"micro_batches": 0}, ["micro_batches is 0"]),
        ({"boundaries": ["a", "a"]}, ["each cuts once"]),
        ({"schedule": "GPipe"}, ["in_flight=5 does not fit GPipe"]),
        ({"placement": {"stage:0": ""}}, ["placement has 'stage:0'"]),
        ({"placement": {"stage:0": "\ud800"}}, ["whose worker is '\\ud800'"]),
        ({"in_flight": 10**20}, ["in_flight is 100000000000000000000; it must be"]),
        ({"schedule": {"file": "\0"}, "in_flight": None}, ["a schedule file's path is "]),
        (
            {"boundaries": []},
            ["strategy.boundaries is [] and strategy.num_stages is null", "names 3 stages; say how many"],
        ),
    ],
)
def test_each_fault_of_the_strategy_is_named(tmp_path: Path, changes: dict[str, Any], texts: list[str]) -> None:
    said = _refusal(tmp_path, _document(**changes))
    for text in texts:
        assert text in said


def test_each_fault_of_the_file_is_named(tmp_path: Path) -> None:
    assert "is not JSON" in _refusal(tmp_path, "{")
    assert "it is a list, not an object" in _refusal(tmp_path, "[]")
    assert "format is missing; strategy is missing" in _refusal(tmp_path, "{}")
    assert "nests too deeply" in _refusal(tmp_path, "[" * 100_000)
    assert "nests too deeply" in _refusal(tmp_path, '{"strategy":' * 100_000)
    for wrong in (1.0, True, "1", None):
        assert f"format is {wrong!r}; this version reads 1" in _refusal(tmp_path, _document() | {"format": wrong})
    assert "format is 2; this version reads 1" in _refusal(tmp_path, _document() | {"format": 2})
    assert "strategy is 3" in _refusal(tmp_path, _document() | {"strategy": 3})
    assert "stages is not a field" in _refusal(tmp_path, _document() | {"stages": []})
    twice = plan_file_text(STRATEGY, REPORT).replace('"schedule": "1F1B"', '"schedule": "naive", "schedule": "1F1B"', 1)
    assert "schedule is there twice" in _refusal(tmp_path, twice)
    document = _document()
    del document["strategy"]["micro_batches"], document["strategy"]["placement"]
    said = _refusal(tmp_path, document)
    assert "strategy.micro_batches is missing; strategy.placement is missing" in said
    (tmp_path / "plan.json").unlink()
    with pytest.raises(PipesvcError, match="cannot be read: No such file"):
        read_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_bytes(b"alph\xe9")
    with pytest.raises(PipesvcError, match="cannot be read: 'utf-8' codec"):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(PipesvcError, match="cannot be read: embedded null byte"):
        read_plan("plan\0.json")


def test_the_number_of_stages_may_be_said_instead_of_boundaries_or_left_to_the_marks(tmp_path: Path) -> None:
    assert _read(tmp_path, _document(boundaries=[], num_stages=3)).num_stages == 3
    assert _read(tmp_path, _document(boundaries=[], placement={"cpu": "a", "gpu:0": "b"})).boundaries == ()
    assert _read(tmp_path, _document(boundaries=[], pipeline=False, placement={"stage:0": "a"})).pipeline is False


def test_the_path_of_a_schedule_file_is_relative_to_the_plan_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1F0,1B0\n")
    monkeypatch.chdir(tmp_path)
    strategy = Strategy(boundaries=("head",), schedule=ScheduleFile("mine.csv"))
    text = plan_file_text(strategy, REPORT, tmp_path / "plans")
    assert json.loads(text)["strategy"]["schedule"] == {"file": "../mine.csv"}
    (tmp_path / "plans" / "plan.json").write_text(text)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    read = read_plan(tmp_path / "plans" / "plan.json").schedule
    assert isinstance(read, ScheduleFile)
    assert read.text == strategy.schedule.text  # type: ignore[union-attr]


def test_a_schedule_file_is_named_in_the_plan(tmp_path: Path) -> None:
    csv = tmp_path / "mine.csv"
    csv.write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
    strategy = Strategy(micro_batches=2, boundaries=("head",), schedule=ScheduleFile(csv))
    assert _read(tmp_path, plan_file_text(strategy, REPORT, tmp_path)).schedule == ScheduleFile(csv)
    for wrong in ({}, {"file": 3}, {"file": "x", "y": 1}):
        assert "strategy.schedule is" in _refusal(tmp_path, _document(schedule=wrong))
