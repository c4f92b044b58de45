"""Plans of modules through real processes: measured, explained, run to the bits of the plain loop, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipesvc
from pipesvc.client.plan_file import plan_file_text, read_plan
from pipesvc.client.plan_view import plan_text
from tests.integration import module_jobs
from tests.integration.comparisons import assert_equal
from tests.integration.test_modules import make_job, truth

UNITS = ["words", "blocks.0", "blocks.1", "blocks.2", "norm", "head"]


def job(**strategy: Any) -> pipesvc.Job:
    return make_job(strategy=pipesvc.Strategy(micro_batches=4, **strategy))


def test_a_module_with_a_skip_is_measured_planned_and_trained(cluster: pipesvc.Client, tmp_path: Path) -> None:
    asked = job(boundaries="auto", schedule="auto", num_stages=3)
    costs = cluster.profile(asked).costs
    assert [layer.name for layer in costs.layers] == UNITS
    num_bytes = sum(layer.parameter_bytes for layer in costs.layers)
    assert num_bytes == sum(each.nbytes for each in module_jobs.Skipping().parameters())
    planned = cluster.plan(asked)
    assert len(planned.report.reasons) == 2
    assert [name for stage in planned.plan.stages for name in stage.layer_names] == UNITS
    shown = plan_text(planned.report)
    assert "a step predicted" in shown
    assert "chosen: Layers by 'auto'" in shown
    run = cluster.submit(asked)
    assert_equal(run, truth())
    assert [stage.layer_names for stage in run.plan().stages] == [s.layer_names for s in planned.plan.stages]
    (tmp_path / "plan.json").write_text(plan_file_text(planned.strategy, planned.report))
    again = cluster.submit(make_job(strategy=read_plan(tmp_path / "plan.json")), is_planned=True)
    assert_equal(again, truth())


def test_what_goes_over_each_way_is_predicted_to_the_byte(cluster: pipesvc.Client) -> None:
    """The embedding goes straight from stage 0 to stage 2, and so does its gradient back."""
    asked = job(boundaries=("blocks.1", "blocks.2"))
    run = cluster.submit(asked)
    assert_equal(run, truth())
    lines = {(line.where, line.what): line for line in cluster.compare(asked, run.run_id)}
    links = [where for where, _ in lines if where.startswith("link") and where.endswith(("activation", "gradient"))]
    assert {"link 0>2/activation", "link 2>0/gradient"} <= set(links)
    for link in links:
        assert lines[link, "bytes"].predicted == lines[link, "bytes"].measured, link
    for stage in run.plan().stages:
        for what in ("forward", "backward", "update", "idle"):
            assert lines[f"stage {stage.index} on {stage.worker}/cpu", what].predicted is not None


def test_tied_weights_are_counted_at_each_holder_and_their_gradients_on_their_ways(cluster: pipesvc.Client) -> None:
    strategy = pipesvc.Strategy(micro_batches=4, boundaries="auto", num_stages=3)
    asked = make_job(module_jobs.Tied, strategy=strategy)
    plan = cluster.plan(asked).plan
    held = sum(stage.parameter_bytes for stage in plan.stages)
    copies = sum(tie.num_bytes * (len(tie.stages) - 1) for tie in plan.ties)
    assert copies > 0
    assert held - copies == sum(each.nbytes for each in module_jobs.Tied().parameters())
    run = cluster.submit(asked)
    assert_equal(run, truth(module_jobs.Tied))
    lines = {(line.where, line.what): line for line in cluster.compare(asked, run.run_id)}
    gradients = {where: line for (where, _), line in lines.items() if where.endswith("/gradient")}
    # The head's goes to the embedding for each of the four micro-batches.
    assert (gradients["link 2>0/gradient"].predicted or 0) >= 4 * module_jobs.Tied().head.weight.nbytes
    assert [where for where, line in gradients.items() if line.predicted != line.measured] == []


def test_guards_keep_their_units_and_the_places_are_found(cluster: pipesvc.Client) -> None:
    data = pipesvc.DataSource(module_jobs.pairs, batch_size=8)
    asked = make_job(module_jobs.Marked, data=data, strategy=pipesvc.Strategy(micro_batches=4, schedule="auto"))
    planned = cluster.plan(asked)
    assert [stage.label for stage in planned.plan.stages] == ["cpu:first", "cpu:middle", "cpu:last"]
    assert planned.strategy.placement.keys() == {"cpu:first", "cpu:middle", "cpu:last"}
    cluster.submit(asked).wait()


def test_a_method_cuts_units(cluster: pipesvc.Client) -> None:
    planned = cluster.plan(job(boundaries="type:Block", num_stages=3))
    assert [stage.layer_names for stage in planned.plan.stages] == [
        ("words", "blocks.0"),
        ("blocks.1",),
        ("blocks.2", "norm", "head"),
    ]


def test_a_forward_that_cannot_be_followed_is_refused_with_its_line(cluster: pipesvc.Client) -> None:
    with pytest.raises(pipesvc.PipesvcError, match=r"`if x\.sum") as caught:
        cluster.plan(make_job(module_jobs.Deciding))
    assert "pipeline=False" in caught.value.details.advice
