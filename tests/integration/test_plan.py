"""The plan with real processes: measured, shown, written, edited, submitted, and compared with what the run did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import pipesvc
from pipesvc.client.local import LocalCluster
from tests.integration import jobs

_FILE = """
import torch
import pipesvc
from tests.integration import jobs

job = pipesvc.Job(
    model=pipesvc.Call(jobs.mlp, depth=4),
    loss=jobs.cross_entropy,
    optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
    data=pipesvc.DataSource(jobs.samples, batch_size=8),
    strategy=pipesvc.Strategy(micro_batches=4, boundaries="auto", schedule="auto"),
)
"""


def _job(**strategy: object) -> pipesvc.Job:
    settings: dict[str, object] = {"micro_batches": 4} | strategy
    return pipesvc.Job(
        model=pipesvc.Call(jobs.mlp, depth=4),
        loss=jobs.cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(jobs.samples, batch_size=8),
        strategy=pipesvc.Strategy(**settings),  # type: ignore[arg-type]
    )


def test_a03_an_open_strategy_is_planned_runs_so_and_trains_to_the_same_numbers(cluster: pipesvc.Client) -> None:
    asked = _job(boundaries="auto", schedule="auto")
    planned = cluster.plan(asked)
    assert planned.report.step_s > 0
    assert len(planned.report.reasons) == 2
    run = cluster.submit(asked, "planned")
    run.wait()
    assert cluster.submit(asked, "planned").run_id == "planned"
    plain = cluster.submit(_job(pipeline=False))
    plain.wait()
    assert run.losses() == plain.losses()


def test_a_run_is_compared_with_what_was_predicted(cluster: pipesvc.Client) -> None:
    asked = _job(boundaries=(4,))
    run = cluster.submit(asked)
    run.wait()
    lines = {(line.where, line.what): line for line in cluster.compare(asked, run.run_id)}
    step = lines["step", "time"]
    assert step.predicted
    assert step.measured
    for stage in run.plan().stages:
        for what in ("forward", "backward", "update", "idle"):
            line = lines[f"stage {stage.index} on {stage.worker}/cpu", what]
            assert line.predicted is not None
            assert line.measured is not None
    for link in ("0>1/activation", "1>0/gradient"):
        line = lines[f"link {link}", "bytes"]
        assert line.predicted == line.measured == 8 * jobs.WIDTH * 4


def test_a_run_is_compared_by_its_own_micro_batches_and_one_of_other_sizes_is_refused(cluster: pipesvc.Client) -> None:
    run = cluster.submit(_job(boundaries=(4,), micro_batches=2))
    run.wait()
    lines = {(line.where, line.what): line for line in cluster.compare(_job(pipeline=False), run.run_id)}
    line = lines["link 0>1/activation", "bytes"]
    assert line.predicted == line.measured == 8 * jobs.WIDTH * 4
    larger = replace(_job(), data=pipesvc.DataSource(jobs.samples, batch_size=16))
    with pytest.raises(pipesvc.PipesvcError, match=r"has 4 rows in its first micro-batch \(8 in 2\), and .* have 8"):
        cluster.compare(larger, run.run_id)


def test_what_a_comparison_waits_for_is_told(cluster: pipesvc.Client) -> None:
    asked = replace(_job(boundaries=(4,)), seed=77, max_steps=4)
    run = cluster.submit(asked)
    told: list[str] = []
    cluster.compare(asked, run.run_id, on_event=lambda awaited: told.extend(each.what for each in awaited))
    assert any("measuring" in what for what in told)


def test_a03_the_commands_write_a_plan_that_submit_takes(tmp_path: Path) -> None:
    (tmp_path / "planned.py").write_text(_FILE)
    with LocalCluster(num_workers=2, num_threads=1, state_dir=tmp_path / "state") as client:
        environment = os.environ | {
            "PIPESVC_COORDINATOR": client.address,
            "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.getcwd()])),
            "COLUMNS": "100",
        }

        def pipesvc_says(*arguments: str, exit_code: int = 0) -> str:
            token = ["--token-file", str(tmp_path / "state" / "token")]
            done = subprocess.run(
                [sys.executable, "-m", "pipesvc", *arguments, *token],
                cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False,
            )  # fmt: skip
            assert done.returncode == exit_code, done.stderr
            return done.stdout if exit_code == 0 else done.stderr

        name = "planned.py:job"
        shown = pipesvc_says("plan", name, "--gantt", "--svg", "plan.svg", "--out", "plan.json")
        assert "a step predicted" in shown
        assert "F forward, B backward" in shown
        assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
        assert json.loads(pipesvc_says("plan", name, "--json"))["stages"]
        plan = json.loads((tmp_path / "plan.json").read_text())
        plan["strategy"] |= {"boundaries": ["4"], "schedule": "GPipe", "in_flight": None, "num_stages": None}
        plan["strategy"]["placement"] = {"stage:0": "worker-1", "stage:1": "worker-0"}
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        run_id = pipesvc_says("submit", name, "--plan", "plan.json").split()[0]
        made = client.attach(run_id).plan()
        assert [stage.worker for stage in made.stages] == ["worker-1", "worker-0"]
        assert made.schedule == "GPipe"
        shown = pipesvc_says("plan", name, "--plan", "plan.json", "--gantt", "--out", "again.json")
        assert "GPipe" in shown
        assert "F forward, B backward" in shown
        again = json.loads((tmp_path / "again.json").read_text())["strategy"]
        assert again["placement"] == {"stage:0": "worker-1/cpu", "stage:1": "worker-0/cpu"}
        assert "link 0>1/activation" in pipesvc_says("plan", name, "--compare", run_id)
        assert "link 0>1/activation" in pipesvc_says("plan", name, "--plan", "plan.json", "--compare", run_id)
        compared = json.loads(pipesvc_says("plan", name, "--compare", run_id, "--json"))
        assert {line["what"] for line in compared if line["where"] == "step"} == {"time"}
        plan["strategy"]["micro_batches"] = 2
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        refusal = pipesvc_says("plan", name, "--plan", "plan.json", "--compare", run_id, exit_code=2)
        assert f"the run {run_id} has another plan: micro_batches is 2 and was 4" in refusal
        plan["strategy"]["micro_batch"] = 3
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        refusal = pipesvc_says("submit", name, "--plan", "plan.json", exit_code=2)
        assert "strategy.micro_batch is not a field" in refusal


def test_a_plan_of_another_model_is_refused(cluster: pipesvc.Client) -> None:
    run = cluster.submit(_job(boundaries=(4,)))
    run.wait()
    other = replace(_job(), model=pipesvc.Call(jobs.mlp, depth=2))
    with pytest.raises(pipesvc.PipesvcError, match="not the job's 5"):
        cluster.compare(other, run.run_id)
