"""Is a plan worth following, and does it say what will happen? Two CPU workers of which one gets half of a core.

    python -m benchmarks.prediction                    # 5 rounds; writes benchmarks/results/prediction.json
    python -m benchmarks.prediction --rounds 1 --dry   # does it work? writes nothing

For each model and schedule: the split that `boundaries="auto"` plans from the profile beside the uniform split, and the
step time that was predicted for each beside the one that was measured. Runs are interleaved, and a run's step time is
the median of its steps as `pipesvc plan --compare` takes it. What computes on the slow worker may use half of a core,
by a control group, so root is needed. (A competitor on its core would not do: a worker that waits often gets more
than half of the core while it computes.)
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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


def measure(client: pipesvc.Client, planned: Mapping[Case, Planned], num_rounds: int) -> dict[Case, list[float]]:
    """Seconds of a step, by case and round."""
    taken: dict[Case, list[float]] = {case: [] for case in planned}
    cases = list(planned)
    for round_index in range(num_rounds):
        for case in cases if round_index % 2 == 0 else cases[::-1]:
            run = client.submit(replace(JOBS[case[0]], strategy=planned[case].strategy))
            run.wait()
            taken[case].append(observed_in(run.trace()).step_s)
            predicted_s = planned[case].report.step_s
            text = f"{taken[case][-1]:.3f} s a step, predicted {predicted_s:.3f} s"
            print(f"round {round_index + 1} of {num_rounds}: {text}  {', '.join(case)}", flush=True)
    return taken


def figures(planned: Mapping[Case, Planned], taken: Mapping[Case, Sequence[float]], command: str) -> list[Result]:
    found = []
    for (model, schedule, split), own_s in taken.items():
        num_rounds = len(own_s)
        predicted_s = planned[model, schedule, split].report.step_s
        counts = "+".join(str(stage.num_layers) for stage in planned[model, schedule, split].report.stages)
        name = f"{model}, {schedule}, {split} split {counts}"
        middle_s = rounds.spread(own_s).median
        found.append(
            results.result(
                f"{name}: predicted step time off the measured median",
                rounds.Spread(
                    median=abs(predicted_s / middle_s - 1),
                    lowest=predicted_s / max(own_s) - 1,
                    highest=predicted_s / min(own_s) - 1,
                ),
                unit="of it",
                aim=PREDICTION_AIM,
                command=command,
                num_rounds=num_rounds,
            )
        )
        if split == "auto":
            uniform_s = taken[model, schedule, "uniform"]
            found.append(
                results.result(
                    f"{name}: measured step",
                    rounds.spread(own_s),
                    unit="s",
                    against="uniform split",
                    ratio=rounds.spread(rounds.ratios(own_s, uniform_s)),
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
