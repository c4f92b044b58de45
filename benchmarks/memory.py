"""Does any process of a run grow while it trains? Resident memory at step 100 and at step 500 of one run.

    python -m benchmarks.memory    # about a minute; writes benchmarks/results/memory.json

Two workers, 256 KiB over the boundary each way for each of four micro-batches, once over the links of one host and
once over gRPC. Resident memory includes what processes share, so a segment that is never given back shows as well.
A figure is the median of ten looks at step 500, one a step, less that of ten looks at step 100.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import torch

import pipesvc
from benchmarks import gpt, models, results, rounds
from benchmarks.report import lines
from benchmarks.results import Result

MIB: Final = 1 << 20
FIRST_STEP: Final = 100
LAST_STEP: Final = 500
NUM_LOOKS: Final = 10
AIM: Final = "value <= 4"
NUM_WORKERS: Final = 2
WAYS: Final = ("same host", "gRPC")
SIZES: Final = {"vocabulary": 64, "width": 128, "context": 64}


def make_job(pid_file: Path, *, same_host: bool, num_steps: int) -> pipesvc.Job:
    source = pipesvc.Call(
        models.batches_of, num_rows=32, context=SIZES["context"], vocabulary=SIZES["vocabulary"], pid_file=str(pid_file)
    )
    return pipesvc.Job(
        model=pipesvc.Call(models.build_thin, num_layers=4, **SIZES),
        loss=gpt.token_loss,
        optimizer=pipesvc.Optimizer(torch.optim.AdamW, lr=1e-3),
        data=pipesvc.DataSource(source, yields="batch"),
        strategy=pipesvc.Strategy(boundaries=(3,), micro_batches=4, same_host=same_host),
        max_steps=num_steps,
    )


def processes(cluster: pipesvc.LocalCluster, feeder_pid: int) -> dict[str, psutil.Process]:
    """All of the service and of the run, by what they are, and this one, which is the client.

    A worker is called by its stage, since the feeder, which is beside stage 0, may be on either.
    """
    found = {"client": psutil.Process(), "coordinator": psutil.Process(cluster.pids["coordinator"])}
    for name, pid in cluster.pids.items():
        if name != "coordinator":
            agent = psutil.Process(pid)
            (nursery,) = agent.children()
            children = {child.pid: child for child in nursery.children()}
            stage = 0 if feeder_pid in children else 1
            if feeder := children.pop(feeder_pid, None):
                found["feeder"] = feeder
            (found[f"executor of stage {stage}"],) = children.values()
            found[f"agent of stage {stage}"] = agent
            found[f"nursery of stage {stage}"] = nursery
    return found


def growth(
    cluster: pipesvc.LocalCluster, *, same_host: bool, first_step: int, last_step: int
) -> dict[str, tuple[int, int]]:
    """Of each process, what it held at the first step and how much more it holds at the last one."""
    looks: dict[str, dict[bool, list[int]]] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        pid_file = Path(folder) / "feeder"
        # Some steps more, so that none looks at a run that is about to end.
        run = cluster.client.submit(make_job(pid_file, same_host=same_host, num_steps=last_step + 3 * NUM_LOOKS))
        watched: dict[str, psutil.Process] = {}
        for step in run.steps():
            if step.index == first_step:
                watched = processes(cluster, int(pid_file.read_text()))
            is_late = last_step <= step.index < last_step + NUM_LOOKS
            if is_late or first_step <= step.index < first_step + NUM_LOOKS:
                for name, process in watched.items():
                    own = looks.setdefault(name, {False: [], True: []})
                    own[is_late].append(process.memory_info().rss)
    held = {name: (int(median(own[False])), int(median(own[True]))) for name, own in looks.items()}
    return {name: (before, after - before) for name, (before, after) in held.items()}


def figures(num_rounds: int, command: str) -> list[Result]:
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for _ in range(num_rounds):
        for way in WAYS:
            # A service that has done nothing before: one that has trained has reached its size already.
            cluster = pipesvc.LocalCluster(num_workers=NUM_WORKERS, num_threads=1)
            with cluster:
                own = growth(cluster, same_host=way == WAYS[0], first_step=FIRST_STEP, last_step=LAST_STEP)
            for name, each in own.items():
                found.setdefault((way, name), []).append(each)
                print(f"{each[0] / MIB:7.1f} MiB, {each[1] / MIB:+6.2f} MiB  {name}, {way}", flush=True)
    return list(_results(found, command))


def _results(found: Mapping[tuple[str, str], list[tuple[int, int]]], command: str) -> Iterator[Result]:
    """The aim is that of the process that grows most, which need not be the same in each round."""
    for way in WAYS:
        own = {name: values for (of, name), values in found.items() if of == way}
        largest = [max(growth for _, growth in values) for values in zip(*own.values(), strict=True)]
        yield _result(f"largest of any process, {way}", largest, command, AIM)
        for name, values in own.items():
            held_mib = median(before for before, _ in values) / MIB
            yield _result(f"{name}, which has {held_mib:.0f} MiB, {way}", [each for _, each in values], command, "")


def _result(what: str, growths: Sequence[int], command: str, aim: str) -> Result:
    return results.result(
        f"memory, growth from step {FIRST_STEP} to {LAST_STEP}: {what}",
        rounds.spread([each / MIB for each in growths]),
        unit="MiB",
        aim=aim,
        command=command,
        num_rounds=len(growths),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Growth of each process of a run.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-write", action="store_true", help="only print")
    arguments = parser.parse_args()
    found = figures(arguments.rounds, f"python -m benchmarks.memory --rounds {arguments.rounds}")
    print("\n".join(lines(found)))
    if not arguments.no_write:
        results.write(results.FOLDER / "memory.json", found)


if __name__ == "__main__":
    main()
