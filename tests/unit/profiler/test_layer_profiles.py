"""What a profiler finds of a model whose sizes are known: bytes exactly, times only as far as nothing else can be."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from pipesvc.core.plan import LayerInfo
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model import skeleton
from pipesvc.rpc.v1 import job_pb2
from pipesvc.worker.profiler import groups, link_trial, main
from tests.unit.executor.memory_network import MemoryPort, Network
from tests.unit.profiler import profiled_code
from tests.unit.profiler.profiling import FLOAT, LONG, assignment, column, make_job, profiled


def test_bytes_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("build", optimizer="Adam"), monkeypatch)
    assert found.micro_batch_rows == 8
    assert [(each.layer.name, each.layer.type) for each in found.layers] == [
        ("0", "Linear"),
        ("1", "Sigmoid"),
        ("2", "Linear"),
    ]
    weights = [(3 * 4 + 4) * FLOAT, 0, (4 * 2 + 2) * FLOAT]
    assert [each.layer.parameter_bytes for each in found.layers] == weights
    assert column(found, "gradient_bytes") == weights
    # Two moments, and a counter of steps for each parameter.
    assert column(found, "optimizer_bytes") == [2 * weights[0] + 2 * FLOAT, 0, 2 * weights[2] + 2 * FLOAT]
    assert column(found, "output_bytes") == [8 * 4 * FLOAT, 8 * 4 * FLOAT, 0]
    assert column(found, "output_gradient_bytes") == [8 * 4 * FLOAT, 8 * 4 * FLOAT, 0]
    # The rows; the sigmoid's output; of the last layer its own output and the labels, for the loss.
    assert column(found, "activation_bytes") == [8 * 3 * FLOAT, 8 * 4 * FLOAT, 2 * 8 * 2 * FLOAT]
    assert all(each.forward_s > 0 and each.backward_s > 0 for each in found.layers)
    # Of the sigmoid nothing can wait.
    assert [each.weight_backward_s > 0 for each in found.layers] == [True, False, True]
    assert all(each.input_backward_s > 0 for each in found.layers)
    assert found.layers[1].input_backward_s == found.layers[1].backward_s


def test_what_an_earlier_layer_owns_counts_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of one layer: the owner is on shapes alone while the copy is measured."""
    monkeypatch.setattr(groups, "GROUP_BYTES", 1)
    found = profiled(make_job("tied", optimizer="Adam"), monkeypatch)
    weights = [(3 * 3 + 3) * FLOAT, 3 * FLOAT, (3 * 2 + 2) * FLOAT]
    assert [each.layer.parameter_bytes for each in found.layers] == weights
    assert column(found, "gradient_bytes") == weights
    assert column(found, "optimizer_bytes") == [
        2 * weights[0] + 2 * FLOAT,
        2 * weights[1] + FLOAT,
        2 * weights[2] + 2 * FLOAT,
    ]


@pytest.mark.parametrize(
    ("is_sparse", "gradient_bytes"), [(False, 10 * 4 * FLOAT), (True, 2 * 16 * (4 * FLOAT + LONG))]
)
def test_a_sparse_gradient_has_the_rows_of_all_micro_batches(
    is_sparse: bool, gradient_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = profiled(make_job("table", source="ids", sparse=is_sparse), monkeypatch)
    assert column(found, "gradient_bytes")[1] == gradient_bytes
    # Integers go to the embedding, and no gradient comes back.
    assert column(found, "output_bytes")[0] == 8 * 2 * LONG
    assert column(found, "output_gradient_bytes")[0] == 0


def test_buffers_are_no_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("statistics"), monkeypatch)
    assert found.layers[1].layer.buffer_bytes == 2 * 4 * FLOAT + LONG
    # Its input, which the Linear before does not keep, and the batch's mean and deviation.
    assert found.layers[1].activation_bytes == 8 * 4 * FLOAT + 2 * 4 * FLOAT


def test_what_is_not_trained_has_neither_gradient_nor_state(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("frozen", optimizer="Adam"), monkeypatch)
    assert column(found, "gradient_bytes")[0] == column(found, "optimizer_bytes")[0] == 0
    assert column(found, "activation_bytes")[0] == 0
    assert found.layers[0].layer.parameter_bytes > 0
    assert column(found, "output_gradient_bytes")[0] == 0


@pytest.mark.usefixtures("clock")
def test_a_layer_that_takes_its_time_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("sleepy"), monkeypatch)
    assert [round(each.forward_s, 3) for each in found.layers] == [0.0, 0.02, 0.0]


def test_weights_are_measured_as_they_were_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of updates of a layer must not change what it computes."""
    kept: list[torch.nn.Module] = []

    def build_layers(build: Any, seed: int, owned: range) -> Any:
        layers = real(build, seed, owned)
        kept.extend(layers[index][1] for index in owned)
        return layers

    real = skeleton.build_layers
    monkeypatch.setattr(skeleton, "build_layers", build_layers)
    profiled(make_job("build", optimizer="Adam"), monkeypatch)
    whole = [layer for _, layer in skeleton.whole(profiled_code.build, 11)]
    for ours, plain in zip(kept, whole, strict=True):
        for name, value in plain.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value)


@pytest.mark.parametrize(
    ("job", "code", "text"),
    [
        (make_job("broken"), ErrorCode.STAGE_FAILED, "measuring layer '1' (Breaks) on cpu: forward of layer '1'"),
        (make_job("build", source="no_rows"), ErrorCode.DATA_SOURCE_FAILED, "and w cannot: the data source in epoch 0"),
        (make_job("build", optimizer="LBFGS"), ErrorCode.STAGE_FAILED, "measuring layer '0' (Linear) on cpu: update"),
        (make_job("absent"), ErrorCode.IMPORT_FAILED, "has no 'absent'"),
        (
            make_job("Deciding"),
            ErrorCode.INVALID_JOB,
            "reads the value of a tensor that unit 'blocks.0', or code after",
        ),
    ],
)
def test_what_cannot_be_measured_is_named_with_layer_and_worker(
    job: job_pb2.JobSpec, code: ErrorCode, text: str
) -> None:
    network = Network()
    port = network.ports[0] = MemoryPort(network)
    try:
        with pytest.raises(PipesvcError) as caught:
            main.run(port, assignment(job))
    finally:
        network.close()
    assert caught.value.code is code
    assert text in str(caught.value)
    where = caught.value.details.where
    assert (where.worker, where.stage, where.step) == ("w", None, None)


def test_layers_are_built_in_groups_that_a_small_host_can_hold() -> None:
    sizes = [groups.GROUP_BYTES // 2, groups.GROUP_BYTES // 2, 1, 2 * groups.GROUP_BYTES, 1]
    layers = [LayerInfo(name=str(index), type="", parameter_bytes=size) for index, size in enumerate(sizes)]
    assert [(group.first, group.end) for group in groups.groups(layers, whole=False)] == [
        (0, 2),
        (2, 3),
        (3, 4),
        (4, 5),
    ]
    assert [(group.first, group.end) for group in groups.groups(layers, whole=True)] == [(0, 5)]


def test_two_profilers_measure_the_way_between_them() -> None:
    network = Network()
    ports = [MemoryPort(network), MemoryPort(network)]
    network.ports |= dict(enumerate(ports))
    ended = threading.Event()

    def answer() -> None:
        there = link_trial.LinkTrials(ports[1], 1)
        while not ended.is_set():
            there.turn(0.01)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        found = link_trial.LinkTrials(ports[0], 0).measure(1, "b")
    finally:
        ended.set()
        thread.join()
        network.close()
    assert found.endpoint == 1
    assert found.latency_s > 0
    assert found.bytes_per_s > 0
    assert {str(link) for link in network.sent} == {"0>1/activation", "1>0/gradient"}


def test_a_profiler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trial, "ANSWER_LIMIT_S", 0.01)
    network = Network()
    port = network.ports[0] = MemoryPort(network)
    try:
        with pytest.raises(PipesvcError, match="on worker b did not answer over the data link") as caught:
            link_trial.LinkTrials(port, 0).measure(1, "b")
    finally:
        network.close()
    assert caught.value.code is ErrorCode.LINK_LOST
