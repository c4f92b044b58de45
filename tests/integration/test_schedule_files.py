"""Schedules of torch.distributed.pipelining and of the user's own, through real processes, to the plain loop's bits."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import pipesvc
from pipesvc.core import schedule_csv
from pipesvc.core.schedules import SCHEDULE_NAMES, homes, worker_actions
from tests import torch_tables
from tests.integration.comparisons import assert_equal
from tests.integration.test_numbers import make_job, plain_run


@pytest.mark.parametrize("name", torch_tables.NAMES)
def test_the_kept_tables_are_what_torch_writes(name: str) -> None:
    assert torch_tables.make(name) == torch_tables.text(name)


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_torch_reads_what_is_written(schedule: str) -> None:
    from torch.distributed.pipelining import schedules

    places = homes(schedule, num_stages=4, num_workers=2)
    lists = [
        worker_actions(
            schedule,
            stages=[stage for stage, home in enumerate(places) if home == worker],
            num_stages=4,
            num_micro_batches=4,
            decides=True,
        )
        for worker in sorted(set(places))
    ]
    rows = csv.reader(schedule_csv.write(lists).splitlines())
    read = {number: [schedules._Action.from_str(cell) for cell in row] for number, row in enumerate(rows)}
    assert schedules._validate_schedule(read, len(lists), 4, 4) == dict(enumerate(places))


@pytest.mark.parametrize(
    ("name", "places"),
    [("gpipe.csv", [0, 1, 2, 3]), ("interleaved.csv", [0, 1, 0, 1]), ("zbv_comms.csv", [0, 1, 1, 0])],
)
def test_tables_of_torch_train_to_the_same_numbers(cluster: pipesvc.Client, name: str, places: list[int]) -> None:
    """With clipping, and with a short last batch."""
    file = pipesvc.ScheduleFile(torch_tables.FOLDER / name)
    run = cluster.submit(make_job(num_stages=None, schedule=file, rows=83, clip_norm=0.1))
    assert_equal(run, plain_run(rows=83, clip_norm=0.1))
    stages = run.plan().stages
    workers = list(dict.fromkeys(stage.worker for stage in stages))
    assert [workers.index(stage.worker) for stage in stages] == places


@pytest.mark.parametrize(("schedule", "num_stages"), [("Interleaved1F1B", 4), ("ZBV", 4), ("ZBH1", 3)])
def test_schedules_for_several_parts_train_to_the_same_numbers(
    cluster: pipesvc.Client, schedule: str, num_stages: int
) -> None:
    run = cluster.submit(make_job(num_stages=num_stages, schedule=schedule, optimizer="AdamW"))
    assert_equal(run, plain_run(optimizer="AdamW"))
    assert len({stage.worker for stage in run.plan().stages}) == (3 if schedule == "ZBH1" else 2)
    backwards = {event["action"] for event in run.trace()} & {"B", "I", "W"}
    assert backwards == ({"B"} if schedule == "Interleaved1F1B" else {"I", "W"})


@pytest.mark.parametrize("schedule", ["ZBV", "Interleaved1F1B"])
@pytest.mark.filterwarnings("ignore:.*nothing overlaps")
def test_p06_one_micro_batch_on_four_stages(cluster: pipesvc.Client, schedule: str) -> None:
    run = cluster.submit(make_job(num_stages=4, schedule=schedule, micro_batches=1))
    assert_equal(run, plain_run(micro_batches=1))


def test_p11_a_file_that_does_not_fit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    file = pipesvc.ScheduleFile(path)
    path.write_text("later changes do not count")
    assert make_job(micro_batches=2, num_stages=2, schedule=file).strategy.schedule == file
    with pytest.raises(pipesvc.PipesvcError, match=r"own\.csv: .*it has 2 micro-batches.*Use micro_batches=2"):
        make_job(micro_batches=4, num_stages=2, schedule=file)
    with pytest.raises(pipesvc.PipesvcError, match=r"own\.csv is for 2 stages, and the strategy makes 3"):
        make_job(micro_batches=2, num_stages=3, schedule=file)
    with pytest.raises(pipesvc.PipesvcError, match=r"own\.csv: .*row 1, column 1: 'later changes do not count'"):
        pipesvc.ScheduleFile(path)
    with pytest.raises(pipesvc.PipesvcError, match=r"cannot be read.*No such file"):
        pipesvc.ScheduleFile(tmp_path / "none.csv")
