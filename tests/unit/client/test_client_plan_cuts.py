"""Cuts that are searched for where several stages lie on one worker: by schedule, by a file, by marks and places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipesvc.client.job import ScheduleFile
from pipesvc.client.plan_cuts import _with_fewer_in_flight
from pipesvc.client.planning import Planned, plan_job
from pipesvc.core.costs import Costs
from pipesvc.errors import ErrorCode, PipesvcError
from tests.unit.client.planning_costs import MIB, costs, crew, device, job

TWO = costs(device("a"), device("b", 2.0))
FOUR = costs(*map(device, "abcd"))
METHODS = ("auto", "uniform", "parameters", "type:Block")
SHARED: dict[str, Callable[[int], int]] = {
    "Interleaved1F1B": lambda stage: stage % 2,
    "ZBV": lambda stage: min(stage, 3 - stage),
}
MARKS = ("cpu", "", "gpu:0", "", "gpu:1", "")


def _planned(known: Costs, **strategy: Any) -> Planned:
    return plan_job(job(**strategy), known, crew(*dict.fromkeys(device.worker for device in known.devices)))


def _refusal(known: Costs, **strategy: Any) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        _planned(known, **strategy)
    return caught.value


def _homes(planned: Planned) -> str:
    return "".join(stage.worker for stage in planned.plan.stages)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("schedule", SHARED)
def test_a_method_cuts_for_several_stages_on_each_worker(schedule: str, method: str) -> None:
    planned = _planned(TWO, schedule=schedule, boundaries=method)
    home = SHARED[schedule]
    workers = _homes(planned)
    assert len(workers) == 4
    assert {home(stage): worker for stage, worker in enumerate(workers)} in ({0: "a", 1: "b"}, {0: "b", 1: "a"})
    assert len({(home(stage), worker) for stage, worker in enumerate(workers)}) == 2
    assert sum(stage.num_layers for stage in planned.report.stages) == 6
    again = plan_job(job(**{"boundaries": planned.strategy.boundaries, "schedule": schedule}), TWO, crew(*workers[:2]))
    assert [stage.num_layers for stage in again.report.stages] == [stage.num_layers for stage in planned.report.stages]


def test_the_slower_worker_gets_less_of_what_is_shared_out() -> None:
    for schedule in SHARED:
        planned = _planned(TWO, schedule=schedule, boundaries="auto")
        held = {worker: 0 for worker in "ab"}
        for stage in planned.report.stages:
            held[stage.worker] += stage.num_layers
        assert held == {"a": 4, "b": 2}
        assert planned.report.step_s < _planned(TWO, schedule=schedule, num_stages=4).report.step_s


@pytest.mark.parametrize("method", METHODS)
def test_as_many_stages_as_are_asked_for_or_as_the_layers_fill(method: str) -> None:
    assert _homes(_planned(TWO, schedule="Interleaved1F1B", boundaries=method, num_stages=6)) in ("ababab", "bababa")
    planned = _planned(FOUR, schedule="Interleaved1F1B", boundaries=method)
    assert len(planned.plan.stages) == 6
    assert len(planned.plan.workers) == 3


def test_places_that_are_given_are_kept_and_wrong_ones_are_refused_by_the_planner() -> None:
    asked: dict[str, Any] = {"schedule": "ZBV", "boundaries": "auto"}
    assert _homes(_planned(TWO, **asked, placement={"stage:3": "b"})) == "baab"
    assert _homes(_planned(TWO, **asked, placement={"stage:1": "a/cpu"})) == "baab"
    assert "both on one worker" in str(_refusal(TWO, **asked, placement={"stage:0": "a", "stage:3": "b"}))
    assert "the placement names 'gpu:0'" in str(_refusal(TWO, **asked, placement={"gpu:0": "a"}))
    assert _refusal(TWO, **asked, placement={"stage:0": "c"}).code is ErrorCode.UNKNOWN_WORKER
    assert _refusal(costs(device("a")), **asked, num_stages=4).code is ErrorCode.MISSING_WORKER
    assert "6 layers cannot fill 8 stages" in str(_refusal(TWO, **asked, num_stages=8))


@pytest.mark.parametrize("num_stages", [None, 2])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_cuts_for_a_schedule_file(tmp_path: Path, method: str, num_stages: int | None) -> None:
    csv = tmp_path / "mine.csv"
    csv.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    planned = _planned(FOUR, schedule=ScheduleFile(csv), boundaries=method, num_stages=num_stages, micro_batches=2)
    assert len(planned.plan.stages) == len(planned.plan.workers) == 2
    csv.write_text("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n")
    planned = _planned(TWO, schedule=ScheduleFile(csv), boundaries=method, micro_batches=2)
    assert _homes(planned) == "aa"


def test_stages_on_one_device_fit_into_its_memory_together() -> None:
    """Six layers of 4 MiB and of 0.5 MiB for each micro-batch alive are half on each worker."""
    asked: dict[str, Any] = {"schedule": "Interleaved1F1B", "boundaries": "auto"}
    wide = costs(device("a", memory_bytes=20 * MIB), device("b", memory_bytes=20 * MIB))
    assert len(_planned(wide, **asked).plan.stages) == 4
    tight = costs(device("a", memory_bytes=14 * MIB), device("b", memory_bytes=14 * MIB))
    assert "would need" in str(_refusal(tight, **asked))


@pytest.mark.parametrize("schedule", ["1F1B", "auto"])
@pytest.mark.parametrize("given", [{"cpu": "a", "gpu:0": "b", "gpu:1": "b"}, {"gpu:0": "b/cpu", "gpu:1": "b"}])
def test_marks_that_share_a_worker_are_planned(schedule: str, given: dict[str, str]) -> None:
    planned = _planned(
        costs(device("a"), device("b"), marks=MARKS),
        boundaries="auto", schedule=schedule, placement=given, allow_cpu_for_gpu=True,
    )  # fmt: skip
    assert planned.strategy.placement == {"cpu": "a/cpu", "gpu:0": "b/cpu", "gpu:1": "b/cpu"}
    assert planned.report.runner_up == "" or schedule == "auto"


def test_marks_on_two_gpus_of_one_worker_keep_one_each() -> None:
    known = costs(device("a"), device("b", device="cuda:0"), device("b", device="cuda:1"), marks=MARKS)
    members = crew("a", "b")
    members = type(members)(
        workers=(members.workers[0], type(members.workers[1])(name="b", devices=("cpu", "cuda:0", "cuda:1")))
    )
    asked = job(boundaries="auto", placement={"gpu:0": "b", "gpu:1": "b"})
    places = plan_job(asked, known, members).strategy.placement
    assert sorted(places.values()) == ["a/cpu", "b/cuda:0", "b/cuda:1"]


def test_stages_that_are_given_one_device_share_it_and_the_rest_is_searched() -> None:
    planned = _planned(TWO, boundaries="auto", placement={"stage:0": "b", "stage:1": "b"}, num_stages=3)
    assert _homes(planned) == "bba"


def test_an_open_cut_takes_the_most_in_flight_that_fit() -> None:
    """A stage of two layers has 8 MiB of model and 1 MiB of activations for each micro-batch."""
    known = costs(*(device(name, memory_bytes=11 * MIB) for name in "abc"))
    planned = _planned(known, boundaries="auto", schedule="auto", micro_batches=8)
    assert [stage.num_layers for stage in planned.report.stages] == [2, 2, 2]
    assert planned.report.in_flight == 2


def test_the_cut_itself_is_that_for_the_most_in_flight() -> None:
    asked: list[int] = []

    def search(in_flight: Any) -> Any:
        asked.append(in_flight(0, 99))
        if asked[-1] > 5:
            raise PipesvcError(ErrorCode.INVALID_PLAN, "too large")
        return [asked[-1]]

    found: Any = _with_fewer_in_flight(search, 12)
    assert found == [5]
    assert len(asked) == len(set(asked)) <= 5
