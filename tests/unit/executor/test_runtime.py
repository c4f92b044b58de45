"""What the interpreter says, keeps and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from pipesvc.core.schedules import worker_actions
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.executor import state
from tests.unit.executor.batches import Batch, batch_of
from tests.unit.executor.network import Cluster, Setup


def make_layers() -> list[nn.Module]:
    return [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)]


def make_batch(num_micro_batches: int = 2) -> Batch:
    return batch_of(torch.arange(24.0).reshape(8, 3) / 24, torch.ones(8, 2), 8, num_micro_batches)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(Setup(make_layers=make_layers, cuts=(1, 2), loss=mse_loss, clip_norm=1.0), has_labels=True)
    yield made
    made.close()


def test_a07_trace_shows_each_action_of_each_stage_in_order(cluster: Cluster) -> None:
    cluster.train([make_batch(), make_batch()])
    events = [event for trace in cluster.reported("trace") for event in trace.events]
    for stage in range(3):
        wanted = worker_actions("1F1B", stages=[stage], num_stages=3, num_micro_batches=2, decides=True)
        for step in (1, 2):
            found = [(each.action, each.micro_batch) for each in events if (each.stage, each.step) == (stage, step)]
            assert found == [(action.kind.value, action.micro_batch or 0) for action in wanted]
    assert all(each.end_unix_ns >= each.start_unix_ns > 0 for each in events)
    assert {each.worker for each in events if each.stage == 1} == {"worker-1"}
    waited = [each for each in events if each.awaited_ns]
    assert waited
    assert all(each.awaited for each in waited)


def test_trace_comes_with_the_applied_step(cluster: Cluster) -> None:
    cluster.train([make_batch()])
    for port in cluster.ports.values():
        kinds = [each.WhichOneof("message") for each in port.reports]
        kinds = [kind for kind in kinds if kind not in ("progress", "executor_times")]
        assert kinds == ["trace", "step_applied"]


def test_progress_names_what_is_awaited_and_from_whom(cluster: Cluster) -> None:
    cluster.turn_until_idle()
    cluster.turn_until_idle()
    assert [each.awaiting for each in cluster.ports["worker-1"].reported("progress")] == [
        "the next step from the coordinator"
    ]
    for port in cluster.ports.values():
        port.tell(issue_step=local_pb2.IssueStep(step=1, shares=[0.5, 0.5]))
    cluster.turn_until_idle()
    newest = {worker: port.reported("progress")[-1] for worker, port in cluster.ports.items()}
    assert newest["worker-0"].awaiting == "input of step 1, micro-batch 0 from feeder"
    assert newest["worker-1"].awaiting == "activation of step 1, micro-batch 0 from stage 0"
    assert newest["worker-2"].phase == "waiting"


def test_every_parcel_is_consumed_once(cluster: Cluster) -> None:
    cluster.train([make_batch(), make_batch(4)])
    consumed = {link: count for port in cluster.ports.values() for link, count in port.consumed_counts.items()}
    assert consumed == dict(cluster.network.sent)
    counts = {str(link): count for link, count in consumed.items()}
    assert counts == {
        "feeder>0/input": 6,
        "feeder>2/label": 6,
        "0>1/activation": 6,
        "1>2/activation": 6,
        "2>1/gradient": 6,
        "1>0/gradient": 6,
        "1>0/norm": 2,
        "2>0/norm": 2,
        "0>1/decision": 2,
        "0>2/decision": 2,
    }


def test_stages_of_one_worker_use_no_link_between_them() -> None:
    setup = Setup(make_layers=make_layers, cuts=(1, 2), owners=["a", "a", "a"], loss=mse_loss, clip_norm=1.0)
    cluster = Cluster(setup, has_labels=True)
    cluster.train([make_batch()])
    cluster.close()
    assert {str(link) for link in cluster.network.sent} == {"feeder>0/input", "feeder>2/label"}


def test_n20_batch_norm_counts_micro_batches(cluster: Cluster) -> None:
    cluster.train([make_batch(2)])
    assert cluster.state()["1.num_batches_tracked"].item() == 2


def files_of(cluster: Cluster, step: int) -> dict[int, bytes]:
    """The streamed file of each stage with its weights, with offsets and ends checked."""
    files: dict[int, bytearray] = {}
    training: dict[int, bytearray] = {}
    ended = set()
    for chunk in cluster.reported("state_chunk"):
        if chunk.step != step:
            continue
        assert chunk.stage not in ended
        file = (training if chunk.is_training else files).setdefault(chunk.stage, bytearray())
        assert chunk.offset == len(file)
        file += chunk.data
        if chunk.is_last:
            ended.add(chunk.stage)
    assert ended == set(files)
    return {stage: bytes(file) for stage, file in files.items()}


def test_state_is_saved_between_two_steps_under_the_unsplit_names(cluster: Cluster) -> None:
    for port in cluster.ports.values():
        port.tell(save_state=local_pb2.SaveState(step=1))
    cluster.train([make_batch()])
    after_one = {name: value.detach().clone() for name, value in cluster.state().items()}
    cluster.turn_until_idle()
    cluster.issue(2, make_batch())
    cluster.turn_until_idle()
    loaded: dict[str, Tensor] = {}
    for file in files_of(cluster, 1).values():
        loaded |= load(file)
    assert loaded.keys() == after_one.keys()
    assert all(torch.equal(loaded[name], after_one[name]) for name in loaded)
    nn.Sequential(*make_layers()).load_state_dict(loaded, strict=True)
    assert not torch.equal(cluster.state()["0.weight"], after_one["0.weight"])


def test_state_of_the_start_can_be_saved(cluster: Cluster) -> None:
    for port in cluster.ports.values():
        port.tell(save_state=local_pb2.SaveState(step=0))
    cluster.turn_until_idle()
    assert sorted(files_of(cluster, 0)) == [0, 1, 2]


def test_state_of_a_step_that_is_past_is_refused(cluster: Cluster) -> None:
    cluster.train([make_batch()])
    cluster.ports["worker-1"].tell(save_state=local_pb2.SaveState(step=0))
    with pytest.raises(PipesvcError, match="state of step 0 was asked for after step 1") as caught:
        cluster.turn_until_idle()
    assert caught.value.code is ErrorCode.INTERNAL


def test_large_state_comes_in_full_chunks() -> None:
    cluster = Cluster(Setup(make_layers=lambda: [nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 2)]), has_labels=False)
    cluster.close()
    both = list(state.chunks(cluster.stages[0], types_pb2.Position(step=5), None))
    chunks = [each for each in both if not each.is_training]
    assert [len(each.data) for each in chunks[:-1]] == [state.CHUNK_BYTES] * (len(chunks) - 1)
    assert len(chunks) == 4
    loaded = load(b"".join(each.data for each in chunks))
    assert torch.equal(loaded["0.weight"], cluster.state()["0.weight"])


def test_state_that_is_no_tensor_is_refused() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None: ...

    cluster = Cluster(Setup(make_layers=lambda: [Extra(2, 2)]), has_labels=False)
    cluster.close()
    with pytest.raises(PipesvcError, match="_extra_state") as caught:
        state.check(cluster.stages[0])
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_steps_out_of_order_are_refused(cluster: Cluster) -> None:
    cluster.ports["worker-0"].tell(issue_step=local_pb2.IssueStep(step=2, shares=[1.0]))
    with pytest.raises(PipesvcError, match="step 2 was issued after step 0"):
        cluster.turn_until_idle()


def test_a_parcel_that_comes_twice_is_refused(cluster: Cluster) -> None:
    port = cluster.ports["worker-1"]
    for _ in range(2):
        port.send_parcel(Link.parse("0>1/activation"), 1, 0, torch.ones(2, 4))
    with pytest.raises(PipesvcError, match="two parcels on link 0>1/activation"):
        cluster.turn_until_idle()


def test_stop_ends_the_loop(cluster: Cluster) -> None:
    port = cluster.ports["worker-0"]
    port.tell(stop=local_pb2.Stop(reason="the run is over"))
    runtime = cluster.runtimes["worker-0"]
    runtime.run()
    assert runtime.is_stopped
