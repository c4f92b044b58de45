"""Statements about placement, order, bytes and overlap, read off the trace and the counts of real runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import pytest
import torch

import pipesvc
from tests.integration import jobs

NUM_ROWS = 80
BATCH = 8
MICRO_BATCHES = 4


def make_job(**strategy: Any) -> pipesvc.Job:
    return pipesvc.Job(
        model=jobs.marked,
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=NUM_ROWS), batch_size=BATCH),
        strategy=pipesvc.Strategy(micro_batches=MICRO_BATCHES, **strategy),
    )


@pytest.fixture(scope="module")
def run(cluster: pipesvc.Client) -> pipesvc.Run:
    finished = cluster.submit(make_job(schedule="1F1B"))
    finished.wait()
    return finished


@pytest.fixture(scope="module")
def trace(run: pipesvc.Run) -> list[dict[str, Any]]:
    return run.trace()


def of(trace: list[dict[str, Any]], step: int, action: str) -> dict[tuple[int, int], dict[str, Any]]:
    return {(e["stage"], e["micro_batch"]): e for e in trace if e["step"] == step and e["action"] == action}


def test_a06_four_layers_run_as_1_2_1_on_three_workers(run: pipesvc.Run) -> None:
    stages = run.plan().stages
    assert [stage.end_layer - stage.first_layer for stage in stages] == [1, 2, 1]
    assert len({stage.worker for stage in stages}) == 3


def test_a07_forward_goes_up_and_backward_comes_down(trace: list[dict[str, Any]]) -> None:
    for step in range(1, NUM_ROWS // BATCH + 1):
        forward, backward = of(trace, step, "F"), of(trace, step, "B")
        assert len(forward) == len(backward) == 3 * MICRO_BATCHES
        for i in range(MICRO_BATCHES):
            for stage in (0, 1):
                assert forward[stage, i]["end_unix_ns"] <= forward[stage + 1, i]["start_unix_ns"]
                assert backward[stage + 1, i]["end_unix_ns"] <= backward[stage, i]["start_unix_ns"]
            assert forward[2, i]["end_unix_ns"] <= backward[2, i]["start_unix_ns"]


def test_a08_each_stage_updates_once_after_all_its_backwards(run: pipesvc.Run, trace: list[dict[str, Any]]) -> None:
    num_steps = NUM_ROWS // BATCH
    for step in range(1, num_steps + 1):
        updates = [e for e in trace if e["step"] == step and e["action"] == "U"]
        assert sorted(e["stage"] for e in updates) == [0, 1, 2]
        last_backward: dict[int, int] = defaultdict(int)
        for (stage, _), event in of(trace, step, "B").items():
            last_backward[stage] = max(last_backward[stage], event["end_unix_ns"])
        for update in updates:
            assert update["start_unix_ns"] >= last_backward[update["stage"]]
    assert run.stage_steps() == [num_steps] * 3


def test_a10_a17_bytes_on_each_link_are_those_of_its_tensors(run: pipesvc.Run) -> None:
    """Labels reach the last stage on a link of their own; nothing else crosses; headers stay small."""
    boundary = NUM_ROWS * jobs.WIDTH * 4
    counts = {link["link"]: link for link in run.links()}
    assert {name: link["tensor_bytes"] for name, link in counts.items()} == {
        "feeder>0/input": boundary,
        "feeder>2/label": NUM_ROWS * 8,
        "0>1/activation": boundary,
        "1>2/activation": boundary,
        "1>0/gradient": boundary,
        "2>1/gradient": boundary,
    }
    num_parcels = NUM_ROWS // BATCH * MICRO_BATCHES
    for link in counts.values():
        assert link["num_frames"] == num_parcels
        assert link["wire_bytes"] - link["tensor_bytes"] < 150 * num_parcels


def test_a01_each_worker_holds_only_its_own_parameters(run: pipesvc.Run) -> None:
    held = run.parameters()
    stages = run.plan().stages
    names = {stage.worker: {name.split(".")[0] for name in held[stage.worker]} for stage in stages}
    assert [names[stage.worker] for stage in stages] == [{"0"}, {"1"}, {"3"}]
    assert held[stages[0].worker]["0.weight"] == jobs.WIDTH * jobs.WIDTH * 4


def test_a12_p12_one_micro_batch_warns_that_nothing_overlaps(cluster: pipesvc.Client) -> None:
    job = pipesvc.Job(
        model=pipesvc.Call(jobs.mlp, depth=1),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=8), batch_size=8),
        strategy=pipesvc.Strategy(num_stages=2),
    )
    with pytest.warns(UserWarning, match="nothing overlaps"):
        run = cluster.submit(job)
    run.wait()
    assert len(run.losses()) == 1


def busy_intervals(trace: list[dict[str, Any]], step: int) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in trace:
        if event["step"] == step and event["action"] in ("F", "B"):
            found[event["stage"]].append((event["start_unix_ns"], event["end_unix_ns"]))
    return found


def overlap_ns(trace: list[dict[str, Any]], num_steps: int) -> int:
    """How long two stages computed at the same time."""
    total = 0
    for step in range(1, num_steps + 1):
        busy = busy_intervals(trace, step)
        total += sum(
            max(0, min(a_end, b_end) - max(a_start, b_start))
            for a_start, a_end in busy[0]
            for b_start, b_end in busy[1]
        )
    return total


@pytest.mark.filterwarnings("ignore:.*nothing overlaps")
@pytest.mark.parametrize(("micro_batches", "overlaps"), [(1, False), (4, True)])
def test_a11_stages_overlap_only_with_several_micro_batches(
    cluster: pipesvc.Client, micro_batches: int, overlaps: bool
) -> None:
    """Layers that sleep stand for devices, so that the overlap does not hang on free cores."""
    run = cluster.submit(
        pipesvc.Job(
            model=pipesvc.Call(jobs.sleepy, num_layers=2, pause_s=0.02),
            loss=jobs.cross_entropy,
            optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
            data=pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=32), batch_size=8),
            strategy=pipesvc.Strategy(num_stages=2, micro_batches=micro_batches, schedule="GPipe"),
        )
    )
    run.wait()
    assert (overlap_ns(run.trace(), 4) > 0) == overlaps


def forward_phase(trace: list[dict[str, Any]], step: int) -> tuple[float, float]:
    """How long the forwards of a step took in all, and which part of that time the two stages did nothing."""
    spans = [(e["start_unix_ns"], e["end_unix_ns"]) for e in trace if e["step"] == step and e["action"] == "F"]
    length = max(end for _, end in spans) - min(start for start, _ in spans)
    return length, 1 - sum(end - start for start, end in spans) / (2 * length)


@pytest.mark.filterwarnings("ignore:.*nothing overlaps")
def test_a11_the_bubble_is_that_of_the_formula_and_a_step_is_shorter(cluster: pipesvc.Client) -> None:
    """Two equal stages and m micro-batches: (p-1)/(m+p-1) is 1/2, 1/3 and 1/5 for m = 1, 2 and 4.

    The same rows take the same time in all, however they are cut. The medians of ten steps leave out what the
    machine did beside; what a hop costs comes on top of the formula, so the bound above it is wide.
    """
    lengths, bubbles = [], []
    for micro_batches in (1, 2, 4):
        run = cluster.submit(
            pipesvc.Job(
                model=pipesvc.Call(jobs.sleepy, num_layers=2, pause_s=0.01, by_row=True),
                loss=jobs.cross_entropy,
                optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
                data=pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=80), batch_size=8),
                strategy=pipesvc.Strategy(num_stages=2, micro_batches=micro_batches, schedule="GPipe"),
            )
        )
        run.wait()
        trace = run.trace()
        phases = [forward_phase(trace, step) for step in range(1, 11)]
        lengths.append(statistics.median(length for length, _ in phases))
        bubbles.append(statistics.median(bubble for _, bubble in phases))
    for micro_batches, bubble in zip((1, 2, 4), bubbles, strict=True):
        formula = 1 / (micro_batches + 1)
        assert formula - 0.02 < bubble < formula + 0.12
    assert lengths[0] > lengths[1] > lengths[2]
