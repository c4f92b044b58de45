"""The tables that torch.distributed.pipelining makes, as the files that it writes.

Without a process group: the schedule classes are given what their constructors would set. The files in
tests/torch_schedules were written by `python -m tests.torch_tables` with torch 2.13; the integration tests make them
anew and compare, so that the fast tests need not import torch's package, which takes three seconds.
"""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "torch_schedules"
NAMES = ("gpipe.csv", "1f1b.csv", "interleaved.csv", "interleaved_comms.csv", "zbv.csv", "zbv_comms.csv")


def text(name: str) -> str:
    return (FOLDER / name).read_text()


def make(name: str) -> str:
    """torch's table for 4 stages and 4 micro-batches, two stages on each worker where it interleaves."""
    from torch.distributed.pipelining import schedules

    form = "compute_comms" if name.endswith("_comms.csv") else "compute_only"
    match name.removesuffix("_comms.csv").removesuffix(".csv"):
        case "gpipe":
            return _one_stage_each(schedules.ScheduleGPipe)
        case "1f1b":
            return _one_stage_each(schedules.Schedule1F1B)
        case "interleaved":
            return _two_stages_each(schedules.ScheduleInterleaved1F1B, form)
        case _:
            return _two_stages_each(schedules.ScheduleZBVZeroBubble, form)


def _one_stage_each(kind: Any) -> str:
    schedule = object.__new__(kind)
    schedule._num_stages = schedule._n_microbatches = 4
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows(schedule._get_pipeline_order().values())
    return file.getvalue()


def _two_stages_each(kind: Any, form: str) -> str:
    schedule = object.__new__(kind)
    schedule._num_stages = schedule.num_stages = schedule._n_microbatches = 4
    schedule.pp_group_size = schedule.n_local_stages = schedule.number_of_rounds = schedule.microbatches_per_round = 2
    schedule._stages = []
    schedule._defer_pp_recv = False
    schedule.pipeline_order = {worker: schedule._calculate_single_rank_operations(worker) for worker in range(2)}
    schedule._prepare_schedule_with_comms({worker: list(row) for worker, row in schedule.pipeline_order.items()})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        schedule._dump_csv(path, form)
        return path.read_text()


if __name__ == "__main__":
    for each in NAMES:
        (FOLDER / each).write_text(make(each))
