"""From layers and strategy to the stages of a plan, and the rest of the plan."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesvc.core.plan import LayerInfo, Plan, StrategySettings, WorkerInfo
from pipesvc.core.planner import MissingWorkers, dry_run, make_plan
from pipesvc.errors import PipesvcError

CPU = ("cpu",)
GPU = ("cpu", "cuda:0")


def _layers(*marks: str) -> list[LayerInfo]:
    return [
        LayerInfo(name=str(index), type="Linear", mark=mark, parameter_bytes=4 << index)
        for index, mark in enumerate(marks)
    ]


def _workers(**devices: tuple[str, ...]) -> list[WorkerInfo]:
    return [WorkerInfo(name=name, host=name, boot_id=name, devices=found) for name, found in devices.items()]


def _settings(**changes: Any) -> StrategySettings:
    return StrategySettings(**{"micro_batches": 4, **changes})


def _plan(layers: list[LayerInfo], workers: list[WorkerInfo], **changes: Any) -> Plan:
    plan = make_plan(_settings(**changes), layers, workers)
    assert isinstance(plan, Plan), plan
    return plan


def _refusal(layers: list[LayerInfo], workers: list[WorkerInfo], **changes: Any) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        make_plan(_settings(**changes), layers, workers)
    return caught.value


def _shape(plan: Plan) -> list[tuple[str, str, str]]:
    """Per stage: its layers, and its place."""
    return [(" ".join(stage.layer_names), stage.worker, stage.device) for stage in plan.stages]


def test_unmarked_layers_are_cut_evenly_over_the_workers() -> None:
    plan = _plan(_layers(*[""] * 5), _workers(a=CPU, b=CPU))
    assert _shape(plan) == [("0 1", "a", "cpu"), ("2 3 4", "b", "cpu")]
    assert [stage.label for stage in plan.stages] == ["stage:0", "stage:1"]
    assert [stage.parameter_bytes for stage in plan.stages] == [4 + 8, 16 + 32 + 64]
    assert plan.feeder_worker == "a"


def test_p08_five_layers_as_two_and_three_on_two_workers() -> None:
    plan = _plan(_layers(*[""] * 5), _workers(a=CPU, b=CPU), boundaries=(2,))
    assert _shape(plan) == [("0 1", "a", "cpu"), ("2 3 4", "b", "cpu")]
    other = _plan(_layers(*[""] * 5), _workers(a=CPU, b=CPU), boundaries=(3,), placement={"stage:0": "b"})
    assert _shape(other) == [("0 1 2", "b", "cpu"), ("3 4", "a", "cpu")]


def test_a05_boundaries_by_name_cut_where_the_layers_of_these_names_are() -> None:
    layers = [LayerInfo(name=name, type="Linear") for name in ("2", "body", "1", "head")]
    plan = _plan(layers, _workers(a=CPU, b=CPU, c=CPU), boundaries=("body", "1"))
    assert _shape(plan) == [("2", "a", "cpu"), ("body", "b", "cpu"), ("1 head", "c", "cpu")]


def test_four_layers_as_one_two_one_on_three_workers() -> None:
    plan = _plan(_layers(*[""] * 4), _workers(a=CPU, b=CPU, c=CPU), boundaries=(1, 3))
    assert _shape(plan) == [("0", "a", "cpu"), ("1 2", "b", "cpu"), ("3", "c", "cpu")]


def test_marks_cut_where_the_label_changes() -> None:
    plan = _plan(_layers("", "cpu", "", "gpu:0", "gpu:0", ""), _workers(a=CPU, b=GPU))
    assert _shape(plan) == [("0 1 2", "a", "cpu"), ("3 4 5", "b", "cuda:0")]
    assert [stage.label for stage in plan.stages] == ["cpu", "gpu:0"]


def test_p05_a_stage_without_parameters_is_a_stage() -> None:
    layers = [LayerInfo(name="0", type="ReLU", mark="cpu"), *_layers("", "gpu:0")[1:]]
    plan = _plan(layers, _workers(a=CPU, b=GPU))
    assert [stage.parameter_bytes for stage in plan.stages] == [0, 8]


def test_one_switch_makes_one_stage_of_everything() -> None:
    for changes in ({}, {"placement": {"gpu:0": "nobody"}}, {"num_stages": 7}, {"boundaries": (1,)}):
        plan = _plan(_layers("cpu", "gpu:0"), _workers(a=CPU), is_pipelined=False, **changes)
        assert _shape(plan) == [("0 1", "a", "cpu")]
        assert plan.micro_batches == 4
    placed = _plan(_layers("cpu", "gpu:0"), _workers(a=CPU, b=GPU), is_pipelined=False, placement={"stage:0": "b"})
    assert _shape(placed) == [("0 1", "b", "cuda:0")]


@given(
    num_layers=st.integers(1, 12),
    num_workers=st.integers(1, 6),
    num_stages=st.integers(0, 6),
    boundaries=st.sets(st.integers(1, 11), max_size=4),
    use_boundaries=st.booleans(),
)
def test_every_layer_is_placed_exactly_once_and_no_stage_is_empty(
    num_layers: int, num_workers: int, num_stages: int, boundaries: set[int], use_boundaries: bool
) -> None:
    edges = tuple(sorted(edge for edge in boundaries if edge < num_layers)) if use_boundaries else ()
    settings = _settings(boundaries=edges, num_stages=0 if edges else min(num_stages, num_layers))
    workers = _workers(**{f"w{index}": CPU for index in range(num_workers)})
    plan = make_plan(settings, _layers(*[""] * num_layers), workers)
    if isinstance(plan, MissingWorkers):
        assert plan.num_need == (len(edges) + 1 if edges else min(num_stages, num_layers))
        assert (plan.num_have, len(plan.missing)) == (num_workers, plan.num_need - num_workers)
        return
    held = [name for stage in plan.stages for name in stage.layer_names]
    assert held == [str(index) for index in range(num_layers)]
    assert all(stage.layer_names for stage in plan.stages)
    assert len({stage.worker for stage in plan.stages}) == plan.num_stages
    if edges:
        assert tuple(stage.first_layer for stage in plan.stages[1:]) == edges
    else:
        sizes = [stage.end_layer - stage.first_layer for stage in plan.stages]
        assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.sampled_from(["", "cpu", "cpu:b", "gpu:0"]), min_size=1, max_size=8))
def test_marks_give_every_layer_once_or_refuse_a_label_that_comes_back(marks: list[str]) -> None:
    runs = [mark for mark, _ in groupby(mark for mark in marks if mark)]
    workers = _workers(a=CPU, b=CPU, c=GPU, d=CPU)
    if len(set(runs)) < len(runs):
        assert "comes back" in str(_refusal(_layers(*marks), workers))
        return
    plan = _plan(_layers(*marks), workers)
    held = [name for stage in plan.stages for name in stage.layer_names]
    assert held == [str(index) for index in range(len(marks))]
    if runs:
        assert [stage.label for stage in plan.stages] == runs


@pytest.mark.parametrize(
    ("marks", "changes", "said"),
    [
        ((), {}, "the model has no layers"),
        (("", ""), {"boundaries": (2,)}, "boundaries [2] do not cut 2 layers"),
        (("", "", ""), {"boundaries": (2, 1)}, "boundaries [2, 1] do not cut 3 layers"),
        (("", "", ""), {"boundaries": (0,)}, "boundaries [0] do not cut"),
        (("", ""), {"boundaries": ("nobody",)}, "'nobody' is not the name of a layer"),
        (("", ""), {"boundaries": ("1.weight",)}, "it lies inside layer '1'"),
        (("", "", ""), {"boundaries": ("2", "1")}, "boundaries ['2', '1'] do not cut"),
        (("", "", ""), {"boundaries": (1,), "num_stages": 3}, "num_stages=3 contradicts boundaries [1]"),
        (("", ""), {"num_stages": 3}, "2 layers cannot fill 3 stages"),
        (("", ""), {"num_stages": -1}, "cannot fill -1 stages"),
        (("cpu", ""), {"boundaries": (1,)}, "device_guard marks and the strategy has boundaries"),
        (("cpu", ""), {"num_stages": 2}, "device_guard marks and the strategy has num_stages"),
        (("cpu", "gpu:0", "cpu"), {}, "mark 'cpu' comes back at layer 2 (2) after 'gpu:0'"),
        (("cpu:0",), {}, "unknown mark 'cpu:0': a CPU has no number"),
        (("",), {"schedule": "zigzag"}, "unknown schedule 'zigzag'"),
        (("",), {"micro_batches": 0}, "micro_batches is 0"),
        (("",), {"schedule": "GPipe", "in_flight": 2}, "in_flight=2 does not fit GPipe"),
        (("",), {"placement": {"stage:1": "a"}}, "the placement names 'stage:1'"),
    ],
)
def test_contradictions_are_refused_with_a_way_out(marks: tuple[str, ...], changes: dict[str, Any], said: str) -> None:
    error = _refusal(_layers(*marks), _workers(a=CPU), **changes)
    assert said in str(error)
    assert error.details.advice


def test_p12_one_micro_batch_on_two_stages_warns_that_nothing_overlaps() -> None:
    layers, workers = _layers("", ""), _workers(a=CPU, b=CPU)
    (warning,) = _plan(layers, workers, micro_batches=1).warnings
    assert "nothing overlaps" in warning
    assert _plan(layers, workers, micro_batches=2).warnings == ()
    assert _plan(layers, workers, micro_batches=1, num_stages=1).warnings == ()
    assert _plan(layers, workers, micro_batches=1, is_pipelined=False).warnings == ()


def test_cores_are_shared_among_the_plan_s_workers_on_a_machine() -> None:
    workers = [
        WorkerInfo(name="a", boot_id="x", num_cores=8),
        WorkerInfo(name="b", boot_id="x", num_cores=8),
        WorkerInfo(name="c", boot_id="y", num_cores=8),
        WorkerInfo(name="d", boot_id="x", num_cores=8, num_threads=7),
        WorkerInfo(name="idle", boot_id="x", num_cores=8),
    ]
    plan = _plan(_layers(*[""] * 4), workers, num_stages=4)
    assert plan.threads == {"a": 2, "b": 2, "c": 8, "d": 7}
    many = [WorkerInfo(name=f"w{index}", boot_id="x", num_cores=2) for index in range(3)]
    assert set(_plan(_layers(*[""] * 3), many).threads.values()) == {1}


def test_the_peaks_of_a_plan_are_known_before_it_runs() -> None:
    plan = _plan(_layers("", "", ""), _workers(a=CPU, b=CPU, c=CPU), placement={"stage:0": "a", "stage:1": "c"})
    assert dry_run(plan) == {0: 3, 1: 2, 2: 1}


def test_the_schedule_is_written_as_people_write_it() -> None:
    assert _plan(_layers(""), _workers(a=CPU), schedule="gpipe").schedule == "GPipe"
    assert _plan(_layers(""), _workers(a=CPU), in_flight=3).in_flight == 3


ON_TWO = {"schedule": "Interleaved1F1B", "num_stages": 4}


def _homes(plan: Plan) -> str:
    return "".join(stage.worker for stage in plan.stages)


@pytest.mark.parametrize(
    ("workers", "changes", "wanted"),
    [
        ("ab", ON_TWO, "abab"),
        ("abc", ON_TWO, "abab"),
        ("abcd", {"schedule": "Interleaved1F1B"}, "abcdabcd"),
        ("ab", {"schedule": "Interleaved1F1B", "boundaries": (1, 2, 3, 4, 5)}, "ababab"),
        ("ab", {"schedule": "ZBV"}, "abba"),
        ("abcd", {"schedule": "ZBV", "num_stages": 4}, "abba"),
        ("ab", {**ON_TWO, "placement": {"stage:3": "a"}}, "baba"),
        ("abc", {**ON_TWO, "placement": {"stage:0": "c", "stage:2": "c"}}, "caca"),
        ("ab", {"schedule": "file", "schedule_text": "1F0,2F0,2B0,1B0\n0F0,0B0", "micro_batches": 1}, "abb"),
        ("abc", {"schedule": "ZBH1"}, "abc"),
        ("abcdef", {"schedule": "ZBV"}, "abcddcba"),
        ("abcdef", {"schedule": "Interleaved1F1B"}, "abcdabcd"),
        ("ab", {**ON_TWO, "is_pipelined": False}, "a"),
        ("ab", {"schedule": "ZBV", "is_pipelined": False}, "a"),
    ],
)
def test_stages_lie_where_the_schedule_wants_them(workers: str, changes: dict[str, Any], wanted: str) -> None:
    plan = _plan(_layers(*[""] * 8), _workers(**dict.fromkeys(workers, CPU)), **changes)
    assert _homes(plan) == wanted
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("marks", "changes", "said"),
    [
        (("", "", ""), {"schedule": "ZBV", "num_stages": 3}, "3 stages cannot be two on each worker"),
        (("",) * 4, {"schedule": "Interleaved1F1B", "num_stages": 3}, "3 stages cannot be shared out evenly"),
        (("",) * 4, {"schedule": "Interleaved1F1B", "boundaries": (1, 2)}, "num_stages=, or one boundary less"),
        (("", "", ""), {"schedule": "Interleaved1F1B"}, "the model has 3 layers. Use another schedule"),
        (("", "", ""), {"schedule": "Interleaved1F1B", "num_stages": 4}, "needs 4 stages or more"),
        (("",), {"schedule": "ZBV"}, "the model has 1 layer. Use another schedule"),
        (("",), {"schedule": "file", "schedule_text": "0F0,0B0\n1F0,1B0", "micro_batches": 1}, "needs 2 stages (a"),
        (("cpu", "cpu:b"), {"schedule": "ZBV"}, "a worker holds stages [0] of 2, but with this schedule worker r"),
        (("",) * 4, {**ON_TWO, "placement": {"stage:0": "a", "stage:2": "b"}}, "the schedule wants both on one worker"),
        (("", ""), {"schedule": "file", "schedule_text": "0F0,0B0"}, "it has 1 micro-batches, and a step has"),
        (("", ""), {"schedule": "file", "schedule_text": "0F0,0B0", "num_stages": 2, "micro_batches": 1}, "is for 1"),
        (("", ""), {"schedule": "file", "schedule_text": "0F0,0B0", "micro_batches": 1, "in_flight": 2}, "in_flight=2"),
    ],
)
def test_stages_that_do_not_fit_the_schedule_are_refused(marks: Any, changes: dict[str, Any], said: str) -> None:
    error = _refusal(_layers(*marks), _workers(a=CPU, b=CPU), **changes)
    assert said in str(error)
    assert error.details.advice


def test_stages_of_one_worker_wait_for_one_worker() -> None:
    waiting = make_plan(_settings(**ON_TWO), _layers(*[""] * 4), _workers(a=CPU))
    assert isinstance(waiting, MissingWorkers)
    assert waiting.text == "1 of 2 workers, waiting for one more worker for 'stage:1'"
    waiting = make_plan(_settings(schedule="ZBV", num_stages=6), _layers(*[""] * 6), _workers(a=CPU))
    assert isinstance(waiting, MissingWorkers)
    assert (waiting.num_have, waiting.num_need, len(waiting.missing)) == (1, 3, 2)
