"""Links between workers of one host go from child to child; the numbers are those of gRPC, and nothing is left."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import pipesvc
from pipesvc.client.plan_view import plan_text
from tests.integration import jobs
from tests.integration.evaluation_jobs import make_evaluation, make_job

STRATEGY = pipesvc.Strategy(micro_batches=4, num_stages=3)


@pytest.mark.parametrize("model", [jobs.mlp, jobs.tied])
def test_both_ways_carry_the_same(cluster: pipesvc.Client, model: object) -> None:
    job = make_job(make_evaluation(), model=model, strategy=STRATEGY, clip_norm=0.1, epochs=2)
    near = cluster.submit(job)
    far = cluster.submit(dataclasses.replace(job, strategy=dataclasses.replace(STRATEGY, same_host=False)))
    for run in (near, far):
        run.wait()
    assert near.losses() == far.losses()
    evaluations = [[dataclasses.replace(each, time=0.0) for each in run.evaluations()] for run in (near, far)]
    assert evaluations[0] == evaluations[1] != []
    state, expected = near.state_dict(), far.state_dict()
    assert [name for name in expected if not torch.equal(state[name], expected[name])] == []
    links = [{link["link"]: link for link in run.links()} for run in (near, far)]
    assert links[0].keys() == links[1].keys()
    assert {link["way"] for link in links[1].values()} == {"gRPC"}
    # What is sent once or twice may be over before a way is found.
    busy = [name for name, link in links[1].items() if link["num_frames"] > 20]
    assert len(busy) >= 6
    assert {links[0][name]["way"] for name in busy} == {"same host"}
    for name in busy:
        one, other = links[0][name], links[1][name]
        assert (one["tensor_bytes"], one["num_frames"]) == (other["tensor_bytes"], other["num_frames"])
        assert one["wire_bytes"] < other["wire_bytes"]


def test_a_profile_measures_the_way_that_the_run_will_go_and_a_plan_shows_it(cluster: pipesvc.Client) -> None:
    for same_host, way in ((True, "same host"), (False, "gRPC")):
        strategy = dataclasses.replace(STRATEGY, num_stages=2, schedule="auto", same_host=same_host)
        job = make_job(make_evaluation(), strategy=strategy)
        assert {link.way for link in cluster.profile(job).costs.links.values()} == {way}
        planned = cluster.plan(job)
        assert planned.strategy.same_host is same_host
        assert {link.way for link in planned.report.links} == {way}
        assert f"0>1/activation  {way} " in plan_text(planned.report)
