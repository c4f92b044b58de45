"""Is a plan worth following, and does it say what will happen? Two CPU workers of which one gets half of a core.

    python -m benchmarks.prediction                    # 5 rounds; writes benchmarks/results/prediction.json
    python -m benchmarks.prediction --rounds 1 --dry   # does it work? writes nothing

For each model and schedule: the split that `boundaries="auto"` plans from the profile beside the uniform split, and the
step time that was predicted for each beside the one that was measured. Splits are planned once; runs are interleaved,
and a run's step time is the median of its steps as `pipesvc plan --compare` takes it. A machine's speed drifts within
minutes, so each model is profiled anew before its runs of a round, and compared with what that predicts. What computes
on the slow worker may use half of a core, by a control group, so root is needed. (A competitor on its core would not
do: a worker that waits often gets more than half of the core while it computes.)
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import psutil

import pipesvc
from benchmarks import results, rounds
from benchmarks.prediction_models import JOBS
from benchmarks.report import lines
from benchmarks.results import Result
from pipesvc.client.compare import observed_in
from pipesvc.client.planning import Planned

SCHEDULES: Final = ("GPipe", "1F1B")
SPLITS: Final = ("auto", "uniform")
SLOW: Final = "worker-1"
# Microseconds, the shortest that the system allows. A layer must take much longer, or it is at times not slowed at all.
PERIOD_US: Final = 2_000
PREDICTION_AIM: Final = "value <= 0.15"
PLANNED_AIM: Final = "ratio < 1"

# Model, schedule and split.
Case = tuple[str, str, str]


@contextmanager
def unequal_cluster() -> Iterator[pipesvc.Client]:
    """What computes on the slow worker has half of a core; the rest of it is for agents, coordinator and client."""
    with half_a_core() as procs, pipesvc.LocalCluster(num_workers=2, num_threads=1) as client:
        for process in psutil.Process().children(recursive=True):
            agent = process.parent()
            if "pipesvc.worker.nursery" in process.cmdline() and agent is not None and SLOW in agent.cmdline():
                procs.write_text(str(process.pid))
        yield client


@contextmanager
def half_a_core() -> Iterator[Path]:
    """A control group; a process whose pid is written into this file, and its later children, share half a core."""
    is_v1 = Path("/sys/fs/cgroup/cpu").is_dir()
    group = Path("/sys/fs/cgroup/cpu" if is_v1 else "/sys/fs/cgroup") / f"pipesvc-benchmark-{os.getpid()}"
    group.mkdir()
    try:
        if is_v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD_US // 2))
        else:
            (group / "cpu.max").write_text(f"{PERIOD_US // 2} {PERIOD_US}")
        yield group / "cgroup.procs"
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """A process that has ended leaves its group a moment later."""
    deadline_s = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def plans(client: pipesvc.Client) -> dict[Case, Planned]:
    found = {}
    for model, job in JOBS.items():
        for schedule in SCHEDULES:
            for split in SPLITS:
                open_job = replace(job, strategy=replace(job.strategy, schedule=schedule, boundaries=split))
                found[model, schedule, split] = client.plan(open_job)
    return found


@dataclass(kw_only=True, slots=True)
class Taken:
    """Seconds of a step by round: as measured, and as the profile of the same round predicts."""

    measured_s: list[float] = field(default_factory=list)
    predicted_s: list[float] = field(default_factory=list)


def measure(client: pipesvc.Client, planned: Mapping[Case, Planned], num_rounds: int) -> dict[Case, Taken]:
    taken = {case: Taken() for case in planned}
    for round_index in range(num_rounds):
        for model in rounds.order(list(JOBS), round_index):
            client.profile(JOBS[model], is_fresh=True)
            for case in rounds.order([case for case in planned if case[0] == model], round_index):
                job = replace(JOBS[model], strategy=planned[case].strategy)
                run = client.submit(job)
                run.wait()
                own = taken[case]
                own.measured_s.append(observed_in(run.trace()).step_s)
                own.predicted_s.append(client.plan(job).report.step_s)
                text = f"{own.measured_s[-1]:.3f} s a step, predicted {own.predicted_s[-1]:.3f} s"
                print(f"round {round_index + 1} of {num_rounds}: {text}  {', '.join(case)}", flush=True)
    return taken


def figures(planned: Mapping[Case, Planned], taken: Mapping[Case, Taken], command: str) -> list[Result]:
    found = []
    for (model, schedule, split), own in taken.items():
        num_rounds = len(own.measured_s)
        counts = "+".join(str(stage.num_layers) for stage in planned[model, schedule, split].report.stages)
        name = f"{model}, {schedule}, {split} split {counts}"
        off = rounds.spread([ratio - 1 for ratio in rounds.ratios(own.predicted_s, own.measured_s)])
        found.append(
            results.result(
                f"{name}: predicted step time off the measured one of its round, median (lowest and highest signed)",
                replace(off, median=abs(off.median)),
                unit="of it",
                aim=PREDICTION_AIM,
                command=command,
                num_rounds=num_rounds,
            )
        )
        if split == "auto":
            uniform_s = taken[model, schedule, "uniform"].measured_s
            found.append(
                results.result(
                    f"{name}: measured step",
                    rounds.spread(own.measured_s),
                    unit="s",
                    against="uniform split",
                    ratio=rounds.spread(rounds.ratios(own.measured_s, uniform_s)),
                    aim=PLANNED_AIM,
                    command=command,
                    num_rounds=num_rounds,
                )
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted beside measured, planned beside uniform.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    with unequal_cluster() as client:
        planned = plans(client)
        taken = measure(client, planned, arguments.rounds)
    found = figures(planned, taken, f"python -m benchmarks.prediction --rounds {arguments.rounds}")
    print("\n".join(lines(found)))
    if not arguments.dry:
        results.write(results.FOLDER / "prediction.json", found)


if __name__ == "__main__":
    main()
