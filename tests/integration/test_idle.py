"""Why executors are idle, told of real ones: each cause where it was made, and none where it was not.

Stages sleep rather than compute, so that the other processes of the machine leave the proportions alone.
"""

from __future__ import annotations

import pytest

import pipesvc
from tests.integration import jobs
from tests.integration.idle_jobs import idle_job

PAUSE_S = 0.02
NUM_FORWARDS = 10 * 4


def run_of(cluster: pipesvc.Client, job: pipesvc.Job) -> pipesvc.Run:
    run = cluster.submit(job)
    run.wait()
    return run


def times_by_stage(run: pipesvc.Run) -> list[dict[str, float]]:
    """`run.times()` of the worker of each stage; a system that tells no run delay counts none."""
    times = run.times()
    workers = [stage.worker for stage in run.plan().stages]
    assert sorted(times) == sorted(workers)
    return [{name: seconds or 0.0 for name, seconds in times[worker].items()} for worker in workers]


@pytest.mark.parametrize("same_host", [True, False])
def test_the_stage_behind_a_slow_one_has_no_input(cluster: pipesvc.Client, same_host: bool) -> None:
    first, last = times_by_stage(run_of(cluster, idle_job(same_host=same_host, first_s=PAUSE_S)))
    slept_s = NUM_FORWARDS * PAUSE_S
    # What a stage that has slept takes to get its core is at its own cost, not at that of its sleep.
    assert first["computing_s"] + first["no_core_s"] > slept_s
    assert last["no_input_s"] > slept_s / 2
    assert last["computing_s"] < first["computing_s"]
    assert last["no_credit_s"] < slept_s / 10
    assert first["no_credit_s"] < slept_s / 10


@pytest.mark.parametrize("same_host", [True, False])
def test_the_stage_before_a_slow_one_has_no_credit(cluster: pipesvc.Client, same_host: bool) -> None:
    """Only where it need not wait for gradients: in training it has no more micro-batches alive than parcels fit."""
    training = run_of(cluster, idle_job(same_host=same_host, last_s=PAUSE_S))
    first, last = times_by_stage(training)
    assert first["no_input_s"] > NUM_FORWARDS * PAUSE_S / 2
    assert first["no_credit_s"] < NUM_FORWARDS * PAUSE_S / 10
    data = pipesvc.DataSource(pipesvc.Call(jobs.samples, num_rows=96), batch_size=8)
    run = run_of(cluster, idle_job(same_host=same_host, last_s=PAUSE_S, evaluation=pipesvc.Evaluation(data=data)))
    slept_s = 12 * 4 * PAUSE_S
    first, last = times_by_stage(run)
    assert first["no_credit_s"] > slept_s / 4
    assert last["no_credit_s"] == 0
    assert last["computing_s"] + last["no_core_s"] > slept_s
    ways = {link["link"]: link["way"] for link in run.links()}
    assert ways["0>1/activation"] == ("same host" if same_host else "gRPC")
    trace = [event for event in run.trace() if event["stage"] == 0]
    assert {event["cause"] for event in trace if event["awaited_ns"]} == {"no input", "no credit"}
    assert all(event["awaited_credit_ns"] <= event["awaited_ns"] for event in trace)
    assert sum(event["awaited_credit_ns"] for event in trace) / 1e9 == pytest.approx(first["no_credit_s"], abs=0.3)
    assert sum(event["no_core_ns"] or 0 for event in trace) / 1e9 == pytest.approx(first["no_core_s"], abs=1e-6)
    assert {event["action"] for event in trace if event["no_core_ns"] is not None} <= {"U", "E"}


def test_a14_a_boundary_is_sent_when_its_forward_ends_and_received_ahead(cluster: pipesvc.Client) -> None:
    for same_host in (True, False):
        job = idle_job(same_host=same_host, in_flight=4, first_s=PAUSE_S, last_s=3 * PAUSE_S)
        run = run_of(cluster, job)
        begins, ends, waited = {}, {}, {}
        for event in run.trace():
            if event["action"] == "F":
                place = (event["step"], event["stage"], event["micro_batch"])
                begins[place], ends[place] = event["start_unix_ns"], event["end_unix_ns"]
                waited[place] = event["awaited_ns"]
        for step in range(1, 11):
            # Not at the end of the step, nor with the next forward: stage 1 computes while stage 0 does.
            assert begins[step, 1, 0] < ends[step, 0, 1], same_host
            # And the next one lies there when stage 1 is ready for it, so long as a forward of stage 1 takes.
            assert ends[step, 0, 1] < ends[step, 1, 0]
        late = [place for place, waited_ns in waited.items() if place[1] == 1 and place[2] and waited_ns]
        assert len(late) <= 3, f"{same_host}: {late}"
