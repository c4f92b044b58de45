"""From a job, costs and workers to a plan: what the strategy says, what is left open, and what cannot run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pipesvc.client.job import Codec, ScheduleFile, Strategy
from pipesvc.client.plan_view import plan_text
from pipesvc.client.planning import Crew, crew_of, plan_job, strategy_of
from pipesvc.client.spec import make_submission, measurable
from pipesvc.core.plan import WorkerInfo
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import run_pb2, worker_pb2
from tests.unit.client.planning_costs import MIB, costs, crew, device, job

TWO = costs(device("a"), device("b", 2.0))


def test_an_explicit_strategy_is_reported_as_it_is() -> None:
    planned = plan_job(job(boundaries=(4,), placement={"stage:0": "b"}), TWO, crew("a", "b"))
    first, second = planned.report.stages
    assert (first.place, first.first_layer, first.last_layer, first.num_layers) == ("b/cpu", "block0", "block3", 4)
    assert (second.place, second.num_layers, second.parameter_bytes) == ("a/cpu", 2, 2 * MIB)
    assert (first.forward_s, first.backward_s) == pytest.approx((0.08, 0.16))
    assert (first.update_s, second.update_s) == pytest.approx((0.008, 0.002))
    assert (first.output_bytes, first.gradient_bytes) == (MIB // 16, MIB // 16)
    assert first.hop_s == pytest.approx(0.001 + 0.001 / 16)
    assert (second.output_bytes, second.hop_s) == (0, 0.0)
    assert planned.report.step_s == pytest.approx(planned.evaluated.step.step_s)
    assert 0 < planned.report.bubble < 1


def test_the_strategy_of_a_plan_gives_that_plan_again() -> None:
    for asked in (
        job(boundaries=(4,), in_flight=3),
        job(num_stages=1),
        job(pipeline=False),
        job(schedule="gpipe", num_stages=2),
        job(),
    ):
        planned = plan_job(asked, TWO, crew("a", "b"))
        again = plan_job(job(**{name: getattr(planned.strategy, name) for name in _FIELDS}), TWO, crew("b", "a"))
        assert again.plan.stages == planned.plan.stages
        assert (again.plan.schedule, again.plan.in_flight) == (planned.plan.schedule, planned.plan.in_flight)
        assert again.strategy.in_flight == asked.strategy.in_flight
        assert again.strategy == planned.strategy
        assert strategy_of(planned.plan, planned.strategy) == planned.strategy


def test_what_no_plan_decides_is_kept_as_it_was_asked() -> None:
    asked = job(boundaries="auto", schedule="auto", same_host=False, recompute=True, codec=Codec(activations="bf16"))
    found = plan_job(asked, TWO, crew("a", "b")).strategy
    assert (found.same_host, found.recompute, found.codec) == (False, True, asked.strategy.codec)
    assert {each.name for each in fields(Strategy)} == set(_FIELDS)


def test_a_step_is_simulated_with_the_micro_batches_of_all_its_mini_batches() -> None:
    """The strategy keeps those of one, so that it can be submitted again."""
    one, three = (plan_job(replace(job(num_stages=2), accumulate=each), TWO, crew("a", "b")) for each in (1, 3))
    assert three.plan.micro_batches == three.report.micro_batches == 3 * one.plan.micro_batches
    assert three.strategy == one.strategy
    assert 2 * one.report.step_s < three.report.step_s < 3 * one.report.step_s
    found = plan_job(replace(job(boundaries="auto", schedule="auto"), accumulate=3), TWO, crew("a", "b"))
    assert found.plan.micro_batches == 3 * found.strategy.micro_batches


_FIELDS = (
    "pipeline", "micro_batches", "schedule", "num_stages", "boundaries", "placement", "allow_cpu_for_gpu", "in_flight",
    "recompute", "compile", "same_host", "codec",
)  # fmt: skip


def test_a_marked_model_keeps_its_marks_and_gets_places() -> None:
    marks = ("cpu:first", "", "", "cpu:second", "", "")
    planned = plan_job(job(), costs(device("a"), device("b"), marks=marks), crew("a", "b"))
    assert planned.strategy.boundaries == ()
    assert planned.strategy.placement == {"cpu:first": "a/cpu", "cpu:second": "b/cpu"}
    assert "0 (cpu:first)" in plan_text(planned.report)


def test_an_open_cut_gives_the_faster_worker_more() -> None:
    planned = plan_job(job(boundaries="auto"), TWO, crew("a", "b"))
    sizes = {stage.worker: stage.num_layers for stage in planned.report.stages}
    assert sizes == {"a": 4, "b": 2}
    assert planned.strategy.is_open is False
    uniform = plan_job(job(num_stages=2), TWO, crew("a", "b"))
    assert planned.report.step_s < uniform.report.step_s


def test_codecs_are_kept_in_what_is_planned() -> None:
    codec = Codec(activations="int8", links={"0>1": Codec()})
    assert plan_job(job(boundaries="auto", codec=codec), TWO, crew("a", "b")).strategy.codec == codec


def test_a_method_by_name_cuts_by_that_name() -> None:
    planned = plan_job(job(boundaries="uniform"), TWO, crew("a", "b"))
    assert [stage.num_layers for stage in planned.report.stages] == [3, 3]
    assert plan_job(job(boundaries="type:Block", num_stages=2), TWO, crew("a", "b")).plan.num_stages == 2
    with pytest.raises(PipesvcError, match="Attention"):
        plan_job(job(boundaries="type:Attention"), TWO, crew("a", "b"))


def test_an_open_schedule_is_chosen_and_says_why_and_what_lost() -> None:
    planned = plan_job(job(boundaries="auto", schedule="auto", micro_batches=8), TWO, crew("a", "b"))
    assert not planned.strategy.is_open
    assert len(planned.report.reasons) == 2
    assert planned.report.runner_up
    text = plan_text(planned.report)
    assert text.count("\nchosen: ") == 2
    assert "\nrunner-up: " in text


def test_p04_what_fits_only_without_the_optimizer_is_refused_with_the_sum() -> None:
    tight = costs(device("a", memory_bytes=14 * MIB), device("b", memory_bytes=100 * MIB))
    with pytest.raises(PipesvcError) as caught:
        plan_job(job(boundaries=(3,)), tight, crew("a", "b"))
    assert caught.value.code is ErrorCode.INVALID_PLAN
    text = str(caught.value)
    assert "a/cpu would need 3.0 MiB weights + 3.0 MiB gradients + 6.0 MiB optimizer state + 2 x 1.5 MiB" in text
    assert "of 14.0 MiB" in text
    assert "b/cpu" not in text


def test_a03_an_open_cut_fits_with_fewer_in_flight_where_it_does_not_with_as_many_as_usual() -> None:
    """A stage of three layers has 12 MiB of model and 1.5 MiB of activations for each micro-batch."""
    asked = job(boundaries="auto", schedule="auto", num_stages=2)
    tight = costs(device("a", memory_bytes=14 * MIB), device("b", memory_bytes=14 * MIB))
    planned = plan_job(asked, tight, crew("a", "b"))
    assert (planned.report.schedule, planned.report.in_flight) == ("1F1B", 1)
    assert [stage.num_layers for stage in planned.report.stages] == [3, 3]
    wide = costs(device("a", memory_bytes=16 * MIB), device("b", memory_bytes=16 * MIB))
    assert plan_job(asked, wide, crew("a", "b")).report.in_flight == 0
    small = costs(device("a", memory_bytes=13 * MIB), device("b", memory_bytes=13 * MIB))
    with pytest.raises(PipesvcError, match="with 1 micro-batches in flight"):
        plan_job(asked, small, crew("a", "b"))


def test_p04_what_is_far_too_large_is_refused_with_the_whole_sum_too() -> None:
    """The planner alone would refuse it by its weights and gradients."""
    tight = costs(device("a", memory_bytes=MIB), device("b", memory_bytes=100 * MIB))
    members = Crew(workers=(WorkerInfo(name="a", memory_bytes=MIB), WorkerInfo(name="b")))
    with pytest.raises(PipesvcError, match=r"optimizer state \+ 2 x 1.5 MiB activations.* of 1.0 MiB"):
        plan_job(job(boundaries=(3,)), tight, members)


def test_too_few_workers_are_named_and_one_without_costs_is_left_out() -> None:
    with pytest.raises(PipesvcError, match=r"MISSING_WORKER.*1 of 2 workers"):
        plan_job(job(boundaries=(3,)), TWO, crew("a"))
    with pytest.raises(PipesvcError, match=r"MISSING_WORKER.*1 of 2 workers"):
        plan_job(job(boundaries=(3,)), costs(device("a")), crew("a", "new"))


def test_different_fingerprints_are_a_warning() -> None:
    mixed = Crew(workers=crew("a", "b").workers, fingerprints={"a": "AVX2", "b": "AVX512"})
    planned = plan_job(job(boundaries=(3,)), TWO, mixed)
    assert "different numeric fingerprints" in planned.report.warnings[-1]
    assert "WARNING: workers with different numeric fingerprints" in plan_text(planned.report)
    assert json.loads(planned.report.to_json())["places"][1]["fingerprint"] == "AVX512"


def test_the_crew_is_what_the_coordinator_says_without_who_leaves() -> None:
    members = [
        worker_pb2.Register(name="a", devices=["cpu", "cuda:0"], num_cores=4, memory_bytes=7, fingerprint="x"),
        worker_pb2.Register(name="b", devices=["cpu"]),
    ]
    status = run_pb2.GetStatusResponse(
        workers=[run_pb2.WorkerStatus(registration=each, is_draining=each.name == "b") for each in members]
    )
    found = crew_of(status)
    assert [worker.name for worker in found.workers] == ["a"]
    assert found.workers[0].devices == ("cpu", "cuda:0")
    assert found.fingerprints == {"a": "x"}


def test_a_job_is_measured_whatever_its_plan_is() -> None:
    assert measurable(job(boundaries="auto", schedule="auto")) == measurable(job(boundaries=(2,), in_flight=3))
    assert measurable(job(micro_batches=2)) != measurable(job())
    with pytest.raises(PipesvcError, match="INTERNAL"):
        make_submission(job(schedule="auto"))


def test_a_schedule_file_is_simulated_as_it_is_written(tmp_path: Path) -> None:
    csv = tmp_path / "mine.csv"
    csv.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    asked = job(micro_batches=2, boundaries=(3,), schedule=ScheduleFile(csv))
    planned = plan_job(asked, TWO, crew("a", "b"))
    assert [stage.peak_in_flight for stage in planned.report.stages] == [2, 1]
    assert planned.strategy.schedule == asked.strategy.schedule


@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "ZBH1", "ZBV"])
def test_schedules_of_several_stages_on_a_worker_are_planned(schedule: str) -> None:
    planned = plan_job(job(schedule=schedule, micro_batches=8), TWO, crew("a", "b"))
    assert planned.report.step_s > 0
    assert {place.worker for place in planned.report.places} == {"a", "b"}


SPLIT = costs(device("a", weight_s=0.01), device("b", weight_s=0.01))


@pytest.mark.parametrize("cut", [{"boundaries": "auto"}, {"boundaries": "uniform"}, {}, {"num_stages": 4}])
def test_an_open_schedule_takes_two_stages_on_each_worker_where_that_is_fastest(cut: dict[str, Any]) -> None:
    planned = plan_job(job(schedule="auto", **cut), SPLIT, crew("a", "b"))
    assert planned.report.schedule == "ZBV"
    assert [stage.worker for stage in planned.plan.stages] == ["a", "b", "b", "a"]
    assert planned.report.reasons[0].startswith("ZBV: ")
    assert "1F1B with layers" in planned.report.runner_up or cut == {"num_stages": 4}
    again = plan_job(job(**_fields(planned.strategy)), SPLIT, crew("a", "b"))
    assert again.plan == planned.plan


def _fields(strategy: Strategy) -> dict[str, Any]:
    names = ("micro_batches", "schedule", "boundaries", "placement", "num_stages", "in_flight")
    return {name: getattr(strategy, name) for name in names}


def test_a_strategy_keeps_how_its_modules_are_run() -> None:
    planned = plan_job(job(boundaries="auto", recompute=("block1",)), SPLIT, crew("a", "b"))
    assert planned.strategy.recompute == ("block1",)


@pytest.mark.parametrize("cut", [{"boundaries": "auto"}, {"num_stages": 2}, {"num_stages": 4}])
def test_what_is_compiled_is_not_split(cut: dict[str, Any]) -> None:
    planned = plan_job(job(schedule="auto", compile=True, **cut), SPLIT, crew(*"abcd"))
    assert planned.report.schedule in ("1F1B", "GPipe", "Interleaved1F1B")


def test_marks_and_places_say_which_worker_holds_what() -> None:
    placement = {"stage:0": "a", "stage:1": "b"}
    planned = plan_job(job(schedule="auto", boundaries=(3,), placement=placement), SPLIT, crew("a", "b"))
    assert planned.plan.num_stages == 2
    marked = costs(device("a", weight_s=0.01), device("b", weight_s=0.01), marks=("cpu:x",) * 3 + ("cpu:y",) * 3)
    assert plan_job(job(schedule="auto"), marked, crew("a", "b")).plan.num_stages == 2
